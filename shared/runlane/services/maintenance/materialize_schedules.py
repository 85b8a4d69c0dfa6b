"""Schedules whose next fire comes before the pass after next: their runs are made ahead, and so start on the second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from runlane.domain.errors import ConfigurationError, InvariantError
from runlane.ports.maintenance import PhaseResult
from runlane.ports.schedules import DueSchedule, Plan, Skipped
from runlane.services.maintenance.due_timers import LOOK_AHEAD
from runlane.services.maintenance.phase import LIMIT, Upkeep
from runlane.services.schedules.plan import plan, postponed

GROUPS = 20
"""The most groups of a step: it goes on past schedules that were only to be looked at."""
MOST_FIRES = 1000
"""The most runs of a transaction, but for those of one schedule."""


_REFUSED = (ConfigurationError, InvariantError)
"""What the database says of one schedule. Else all of them have to wait: it cannot be reached, or somebody was faster."""


def materialize_schedules(upkeep: Upkeep) -> PhaseResult:
    more = False
    for _ in range(GROUPS):
        due = upkeep.schedules.due_schedules(limit=LIMIT)
        if not due:
            return PhaseResult(0, more=False)
        plans = tuple(_bounded(plan(one, LOOK_AHEAD) for one in due))
        more = len(due) == LIMIT or len(plans) < len(due)
        if made := _carry_out(upkeep, due, plans):
            return PhaseResult(made, more=more)
    return PhaseResult(0, more=more)


def tell_skipped(upkeep: Upkeep, schedule_id: str, skipped: Skipped | None) -> None:
    if skipped is not None:
        since, until = skipped.since.isoformat(), skipped.until.isoformat()
        upkeep.telemetry.emit("schedule.skipped", schedule=schedule_id, since=since, until=until)


def _bounded(plans: Iterable[Plan]) -> Iterator[Plan]:
    fires = 0
    for place, one in enumerate(plans):
        fires += len(one.fires)
        if fires > MOST_FIRES and place:
            return
        yield one


def _carry_out(upkeep: Upkeep, due: Sequence[DueSchedule], plans: Sequence[Plan]) -> int:
    """How many runs were made. One schedule whose runs are refused holds up no other."""
    try:
        return _materialize(upkeep, plans)
    except _REFUSED:
        return sum(_alone(upkeep, one, decided) for one, decided in zip(due, plans, strict=False))


def _alone(upkeep: Upkeep, due: DueSchedule, decided: Plan) -> int:
    try:
        return _materialize(upkeep, [decided])
    except _REFUSED as error:
        upkeep.telemetry.emit("schedule.failed", schedule=due.schedule_id, error=repr(error))
        return _materialize(upkeep, [postponed(due, LOOK_AHEAD)])


def _materialize(upkeep: Upkeep, plans: Sequence[Plan]) -> int:
    done = upkeep.schedules.materialize(plans)
    for one in plans:
        if one.schedule_id in done.decided:
            tell_skipped(upkeep, one.schedule_id, one.skipped)
            if one.is_unreadable:
                upkeep.telemetry.emit("schedule.unreadable", schedule=one.schedule_id)
    upkeep.publisher.publish(done.wakeups)
    return done.made
