"""Runs that joined transactions recorded, and nobody has put into the order yet."""

from __future__ import annotations

from runlane.ports.maintenance import PhaseResult
from runlane.services.maintenance.phase import LIMIT, Upkeep


def fold_recorded(upkeep: Upkeep) -> PhaseResult:
    return upkeep.published(upkeep.store.fold_recorded(limit=LIMIT))
