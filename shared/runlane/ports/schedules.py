"""What schedules ask of storage: one method, one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from runlane.domain.ids import RunId
from runlane.domain.schedule import Timing
from runlane.ports.stores import RecordedRun, ScheduleDefinition, Wakeup

if TYPE_CHECKING:
    from runlane.domain.records import Fire

Change = Literal["created", "updated", "removed"]


class DueSchedule(NamedTuple):
    """A schedule to be looked at. `decided_until`: about fires up to here it is decided. `timing` None: written by a newer release."""

    schedule_id: str
    timing: Timing | None
    holds_key: bool
    """Its runs have a singleton key."""
    version: int
    decided_until: datetime
    now: datetime


class Skipped(NamedTuple):
    """Fires that are not made up for: from the first, up to but without `until`."""

    since: datetime
    until: datetime


class Plan(NamedTuple):
    """What is decided about a schedule of this version. `look_at`: when to look at it again; None: it does not fire any more."""

    schedule_id: str
    version: int
    until: datetime
    look_at: datetime | None
    fires: tuple[Fire, ...] = ()
    skipped: Skipped | None = None
    is_unreadable: bool = False
    """Not by this release, or on this machine."""


class Materialized(NamedTuple):
    """`decided`: the schedules whose plan was carried out; the others had been changed, or another pass was faster. `made`: runs."""

    decided: frozenset[str] = frozenset()
    made: int = 0
    wakeups: tuple[Wakeup, ...] = ()


class Written(NamedTuple):
    """Schedules that were put in force. `passed`: as they were, those with a new timing whose old one was not decided up to now."""

    changes: Mapping[str, Change]
    wakeups: tuple[Wakeup, ...] = ()
    passed: tuple[DueSchedule, ...] = ()


class StoredSchedule(NamedTuple):
    """`now`: the database's time."""

    schedule_id: str
    timing: Timing | None
    enabled: bool
    task: str
    queue: str
    payload: Any
    paused_at: datetime | None
    last_fire_at: datetime | None
    last_run_id: RunId | None
    now: datetime


class TriggeredSchedule(NamedTuple):
    run: RecordedRun
    task: str
    queue: str
    wakeups: tuple[Wakeup, ...] = ()
    starved_queues: tuple[str, ...] = ()


class ScheduleStore(Protocol):
    def write_schedules(self, definitions: Sequence[ScheduleDefinition], *, actor: str | None) -> Written:
        """Put these in force and no others. Runs made ahead of changed and removed ones are cancelled."""
        ...

    def compare(self, definitions: Sequence[ScheduleDefinition]) -> Mapping[str, Change]:
        """What `write_schedules` would change."""
        ...

    def due_schedules(self, *, limit: int) -> tuple[DueSchedule, ...]:
        """Those that are to be looked at."""
        ...

    def materialize(self, plans: Sequence[Plan]) -> Materialized:
        """Make the runs of these fires, once each."""
        ...

    def list_schedules(self, schedule_id: str | None = None) -> tuple[StoredSchedule, ...]:
        """One, or all by id."""
        ...

    def pause(self, schedule_id: str, *, actor: str | None) -> tuple[int, tuple[Wakeup, ...]] | None:
        """Fire no more, and cancel the runs made ahead: how many. None: there is no such schedule."""
        ...

    def resume(self, schedule_id: str, *, actor: str | None) -> bool:
        """Fire again from now on; False: there is no such schedule."""
        ...

    def trigger(self, schedule_id: str, *, actor: str | None) -> TriggeredSchedule | None:
        """A run now, beside the fires. None: there is no such schedule."""
        ...
