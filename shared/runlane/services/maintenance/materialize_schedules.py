"""Schedules whose next fire comes before the pass after next: their runs are made ahead, and so start on the second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runlane.ports.schedules import Plan
from runlane.ports.stores import PhaseResult
from runlane.services.maintenance.due_timers import LOOK_AHEAD
from runlane.services.maintenance.phase import LIMIT, Upkeep
from runlane.services.schedules.plan import plan

GROUPS = 20
"""The most groups of a step: it goes on past schedules that were only to be looked at."""
MOST_FIRES = 1000
"""The most runs of a transaction, but for those of one schedule."""


def materialize_schedules(upkeep: Upkeep) -> PhaseResult:
    for _ in range(GROUPS):
        due = upkeep.schedules.due_schedules(limit=LIMIT)
        plans = tuple(_bounded(plan(one, LOOK_AHEAD) for one in due))
        if not plans:
            break
        done = upkeep.schedules.materialize(plans)
        _tell(upkeep, (one for one in plans if one.schedule_id in done.decided))
        upkeep.publisher.publish(done.wakeups)
        if done.made:
            return PhaseResult(done.made, more=len(due) == LIMIT or len(plans) < len(due))
    return PhaseResult(0, more=False)


def _bounded(plans: Iterable[Plan]) -> Iterator[Plan]:
    fires = 0
    for place, one in enumerate(plans):
        fires += len(one.fires)
        if fires > MOST_FIRES and place:
            return
        yield one


def _tell(upkeep: Upkeep, plans: Iterable[Plan]) -> None:
    for one in plans:
        if one.skipped is not None:
            since, until = one.skipped.since.isoformat(), one.skipped.until.isoformat()
            upkeep.telemetry.emit("schedule.skipped", schedule=one.schedule_id, since=since, until=until)
