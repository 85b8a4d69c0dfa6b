"""Schedules in force: what there is and when it fires, pausing, and a run at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice

from runlane.domain.errors import NotFoundError
from runlane.domain.ids import validate_name
from runlane.domain.nearest import did_you_mean
from runlane.domain.records import Fire, PausedSchedule, ScheduleRecord, ScheduleState
from runlane.domain.schedule import Timing
from runlane.domain.shown import shown
from runlane.ports.schedules import Change, ScheduleStore, StoredSchedule
from runlane.ports.stores import ScheduleDefinition, TriggerBatch
from runlane.services.maintenance.materialize_schedules import materialize_schedules, tell_skipped
from runlane.services.maintenance.phase import Upkeep
from runlane.services.operate.arguments import checked_key, invalid
from runlane.services.schedules.fires import NextAfter, between, fire_of, readable
from runlane.services.schedules.plan import passed_over
from runlane.services.trigger import Trigger, TriggeredRun, TriggerResult

MOST_FIRES = 1000

_EVER = datetime.max.replace(tzinfo=UTC)


class Schedules:
    """The schedules that `runlane migrate` put in force, by id. They are those of the database, whatever this process's code says."""

    def __init__(self, store: ScheduleStore, definitions: Sequence[ScheduleDefinition], upkeep: Upkeep, trigger: Trigger) -> None:
        self._store = store
        self._definitions = definitions
        self._upkeep = upkeep
        self._trigger = trigger

    def list(self) -> tuple[ScheduleRecord, ...]:
        """All of them, by id."""
        return tuple(map(_record, self._store.list_schedules()))

    def get(self, schedule_id: str) -> ScheduleRecord:
        """One; `NotFoundError` `schedule_not_found`."""
        return _record(self._stored(schedule_id))

    def next(self, schedule_id: str, count: int = 5) -> tuple[Fire, ...]:
        """The next fires, `count` at most (1 to 1000), of a paused or disabled schedule those that it would have."""
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_FIRES:
            raise invalid("count", f"{shown(count)} is no whole number from 1 to {MOST_FIRES}")
        stored = self._stored(schedule_id)
        following = readable(stored.timing)
        return () if stored.timing is None or following is None else _upcoming(stored, stored.timing, following, count)

    def pause(self, schedule_id: str, *, actor: str | None = None) -> PausedSchedule:
        """Fire no more until `resume`. Runs that are due or run go on; those whose time has not come, be it by jitter, are cancelled."""
        answer = self._store.pause(validate_name(schedule_id, "schedule_id"), actor=checked_key(actor, "actor"))
        if answer is None:
            raise self._not_found(schedule_id)
        cancelled, wakeups = answer
        self._upkeep.publisher.publish(wakeups)
        return PausedSchedule(self.get(schedule_id), cancelled)

    def resume(self, schedule_id: str, *, actor: str | None = None) -> ScheduleRecord:
        """Fire again, from now on: time in a pause is not missed, whatever `catch_up` says."""
        if not self._store.resume(validate_name(schedule_id, "schedule_id"), actor=checked_key(actor, "actor")):
            raise self._not_found(schedule_id)
        self._materialize()
        return self.get(schedule_id)

    def trigger(self, schedule_id: str, *, actor: str | None = None) -> TriggerResult:
        """Make a run of it now, beside its fires, paused or not."""
        made = self._store.trigger(validate_name(schedule_id, "schedule_id"), actor=checked_key(actor, "actor"))
        if made is None:
            raise self._not_found(schedule_id)
        self._trigger.send(TriggerBatch((), made.wakeups, made.starved_queues))
        run = TriggeredRun(made.run.run_id, made.task, made.queue, made.run.status, made.run.due_at)
        return TriggerResult(run, made.run.outcome, made.run.payload_matches)

    def put_in_force(self, *, actor: str | None = None) -> Mapping[str, Change]:
        """Store the code's schedules as those that fire, and remove all others: what changed, "created", "updated" or "removed" by id.

        A changed schedule fires by its new definition from now on; runs that were made ahead by the old one are cancelled. Fires that
        nobody has made are made up for as `catch_up` says, but for those of an old time or interval: they are passed over, and logged.
        """
        written = self._store.write_schedules(self._definitions, actor=checked_key(actor, "actor"))
        self._upkeep.publisher.publish(written.wakeups)
        for one in written.passed:
            tell_skipped(self._upkeep, one.schedule_id, passed_over(one))
        self._materialize()
        return written.changes

    def _materialize(self) -> None:
        """Not at the next tick: a fire may be nearer than that."""
        while materialize_schedules(self._upkeep).more:
            pass

    def _stored(self, schedule_id: str) -> StoredSchedule:
        found = self._store.list_schedules(validate_name(schedule_id, "schedule_id"))
        if not found:
            raise self._not_found(schedule_id)
        return found[0]

    def _not_found(self, schedule_id: str) -> NotFoundError:
        near = did_you_mean(schedule_id, (stored.schedule_id for stored in self._store.list_schedules()))
        fault = f"no schedule {shown(schedule_id)} is in force; `runlane migrate` stores those of the code{near}"
        return NotFoundError("schedule_not_found", fault, meta={"schedule_id": schedule_id})


def _record(stored: StoredSchedule) -> ScheduleRecord:
    timing = stored.timing
    following = readable(timing)
    upcoming = None if following is None else following(stored.now)
    known = timing or Timing()
    record = ScheduleRecord(
        schedule_id=stored.schedule_id,
        state=ScheduleState.ACTIVE,
        task=stored.task,
        queue=stored.queue,
        cron=known.cron,
        timezone=None if known.cron is None else known.timezone,
        every=known.every,
        run_at=known.run_at,
        jitter=known.jitter,
        catch_up=known.catch_up,
        payload=stored.payload,
        enabled=stored.enabled,
        paused_at=stored.paused_at,
        next_fire_at=upcoming,
        last_fire_at=stored.last_fire_at,
        last_run_id=stored.last_run_id,
    )
    reasons = {
        ScheduleState.UNREADABLE: following is None,
        ScheduleState.DISABLED: not stored.enabled,
        ScheduleState.PAUSED: stored.paused_at is not None,
        ScheduleState.ENDED: upcoming is None,
    }
    state = next((state for state, holds in reasons.items() if holds), None)
    return record if state is None else replace(record, state=state, next_fire_at=None)


def _upcoming(stored: StoredSchedule, timing: Timing, following: NextAfter, count: int) -> tuple[Fire, ...]:
    fires = islice(between(following, stored.now, _EVER), count)
    return tuple(fire_of(stored.schedule_id, timing, fire) for fire in fires)
