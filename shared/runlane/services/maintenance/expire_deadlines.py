"""Start and finish time-outs that have passed."""

from __future__ import annotations

from runlane.ports.maintenance import PhaseResult
from runlane.services.maintenance.phase import LIMIT, Upkeep


def expire_deadlines(upkeep: Upkeep) -> PhaseResult:
    return upkeep.published(upkeep.store.expire_deadlines(limit=LIMIT))
