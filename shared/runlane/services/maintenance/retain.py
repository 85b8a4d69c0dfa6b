"""Weeks whose time is up: dropped whole, or rid of what has ended while something of them must stay."""

from __future__ import annotations

from runlane.ports.maintenance import PhaseResult
from runlane.services.maintenance.phase import LIMIT, Upkeep


def retain(upkeep: Upkeep) -> PhaseResult:
    return upkeep.store.retain(keep_for=upkeep.keep_for, limit=LIMIT)
