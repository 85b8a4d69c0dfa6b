"""Runs whose worker died or was cut off: recovered once, by their task's retry policy."""

from __future__ import annotations

from runlane.ports.stores import PhaseResult
from runlane.services.maintenance.phase import Upkeep
from runlane.services.recovery import recover

GROUP = 100


def recover_leases(upkeep: Upkeep) -> PhaseResult:
    expired = upkeep.store.expired_leases(limit=GROUP)
    report = upkeep.settler.settle([recover(lease, upkeep.tasks) for lease in expired])
    recovered = len(expired) - len(report.unsettled)
    return PhaseResult(recovered, more=len(expired) == GROUP and recovered > 0)
