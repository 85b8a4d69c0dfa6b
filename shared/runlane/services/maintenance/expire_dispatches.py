"""Dispatch rows that nobody claimed in time: their runs return to their old place in the order."""

from __future__ import annotations

from runlane.ports.maintenance import PhaseResult
from runlane.services.maintenance.phase import LIMIT, Upkeep


def expire_dispatches(upkeep: Upkeep) -> PhaseResult:
    return upkeep.published(upkeep.store.expire_dispatches(limit=LIMIT))
