"""Time partitions made ahead, so that no insert ever waits for one."""

from __future__ import annotations

from runlane.ports.maintenance import PhaseResult
from runlane.services.maintenance.phase import Upkeep


def ensure_partitions(upkeep: Upkeep) -> PhaseResult:
    return upkeep.store.ensure_partitions()
