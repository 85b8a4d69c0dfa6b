"""Runs whose worker died or was cut off: recovered once, by their task's retry policy."""

from __future__ import annotations

from runlane.domain.ids import RunId
from runlane.ports.maintenance import PhaseResult
from runlane.services.maintenance.phase import Upkeep
from runlane.services.recovery import recover

GROUP = 100
GROUPS = 10
"""The most groups of a step: it goes on past leases that cannot be settled, so that the oldest do not keep the others from it."""


def recover_leases(upkeep: Upkeep) -> PhaseResult:
    recovered, stuck = 0, list[RunId]()
    for _ in range(GROUPS):
        expired = upkeep.store.expired_leases(limit=GROUP, without=stuck)
        report = upkeep.settler.settle([recover(lease, upkeep.tasks) for lease in expired])
        recovered += len(expired) - len(report.unsettled)
        stuck += report.unsettled
        if len(expired) < GROUP or not report.unsettled:
            break
    return PhaseResult(recovered, more=len(expired) == GROUP and recovered > 0)
