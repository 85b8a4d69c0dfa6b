"""Schedules in the database: one run for each fire, whoever ticks, and none of what was taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from runlane.adapters.postgres.schedules import PostgresScheduleStore
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import ConfigurationError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.records import Fire, RunFilter
from runlane.domain.run import Source, Status
from runlane.domain.schedule import Timing
from runlane.ports.schedules import Materialized, Plan
from runlane.ports.stores import ScheduleDefinition
from runlane.services.schedules.plan import passed_over, plan
from tests.postgres.factories import Lane, at_once, ids, new_run, settlement

pytestmark = pytest.mark.postgres
AHEAD = timedelta(minutes=4)


def quiet(now: datetime) -> Timing:
    """An interval with two fires within the look-ahead, none of which is near now, nor a third near its end: however slow the machine."""
    for tenths in range(1000, 1500):
        every = tenths / 10
        first = every - now.timestamp() % every
        if first >= 45 and first + every <= 205 and first + 2 * every >= 280:
            return Timing(every=timedelta(seconds=every))
    raise AssertionError("there is always one")


@dataclass(frozen=True)
class Stage(Lane):
    """A lane with a queue and with schedules, whose fires are not so near that time could pass them."""

    timing: Timing

    def definition(self, name: str = "s", *, enabled: bool = True, **given: Any) -> ScheduleDefinition:
        """Of the quiet timing with these changes, and a run with these options."""
        told = {field.name: given.pop(field.name) for field in fields(Timing) if field.name in given}
        return ScheduleDefinition(name, replace(self.timing, **told), enabled, new_run("work", source=Source.SCHEDULE, **given))

    def put(self, *definitions: ScheduleDefinition) -> dict[str, str]:
        return dict(self.storage.schedules.write_schedules(definitions, actor="ada").changes)

    def between_fire_and_due(self, name: str = "s") -> RunId:
        """As if its first run ahead were one whose fire has just come, and that is due later by its jitter."""
        row = self.connection.execute(
            """UPDATE runlane.schedule_fire SET fire_at = date_trunc('second', clock_timestamp())
               WHERE schedule = %s AND fire_at = (SELECT min(fire_at) FROM runlane.schedule_fire WHERE schedule = %s) RETURNING run_id""",
            (name, name),
        ).fetchone()
        assert row is not None
        return RunId(str(row[0]))

    def plans(self) -> tuple[Plan, ...]:
        return tuple(plan(one, AHEAD) for one in self.storage.schedules.due_schedules(limit=100))

    def tick(self) -> Materialized:
        return self.storage.schedules.materialize(self.plans())

    def miss(self, fires: int) -> None:
        """As if nobody had ticked since so many fires."""
        self.connection.execute(
            "UPDATE runlane.schedule SET decided_until = clock_timestamp() - %s, look_at = clock_timestamp()", (self.every * fires,)
        )

    @property
    def every(self) -> timedelta:
        assert self.timing.every is not None
        return self.timing.every


@pytest.fixture
def work(lane: Lane) -> Stage:
    lane.queues(Queue("work"))
    return Stage(lane.storage, lane.connection, quiet(datetime.now(UTC)))


def fired(lane: Lane) -> list[datetime]:
    return [row[0] for row in lane.connection.execute("SELECT fire_at FROM runlane.schedule_fire ORDER BY fire_at")]


def statuses(lane: Lane) -> list[str]:
    return [row[0] for row in lane.connection.execute("SELECT status FROM runlane.run_state ORDER BY due_at")]


def test_fires_within_the_look_ahead_become_scheduled_runs_with_a_wakeup_sent_ahead(work: Stage) -> None:
    assert work.put(work.definition(payload='{"a":1}', tenant="t")) == {"s": "created"}
    made = work.tick()
    assert (made.decided, made.made) == ({"s"}, 2)
    assert len(made.wakeups) == 2
    assert {(hint.hint, hint.queue, hint.tenant) for hint in made.wakeups} == {(True, "work", "t")}
    fires = fired(work)
    for hint, fire in zip(made.wakeups, fires, strict=True):
        record = work.storage.runs.get_run(hint.run_id)
        assert record is not None
        assert (record.due_at, record.status, record.source, record.payload) == (fire, Status.SCHEDULED, Source.SCHEDULE, {"a": 1})
        assert record.meta == {"schedule_id": "s", "fire_at": fire.astimezone(UTC).isoformat().replace("+00:00", "Z")}
        assert work.storage.runs.list_events(hint.run_id)[0].data == {"source": "schedule", **record.meta}
    page = work.storage.runs.list_runs(RunFilter(source=Source.SCHEDULE), limit=10, cursor=None)
    assert len(page.data) == 2


def test_a_second_tick_makes_nothing_twice(work: Stage) -> None:
    work.put(work.definition())
    assert work.tick().made == 2
    assert work.tick() == Materialized()
    work.connection.execute("UPDATE runlane.schedule SET look_at = clock_timestamp(), decided_until = clock_timestamp()")
    assert work.tick() == Materialized(frozenset({"s"}))


def test_fires_of_cron_are_minutes_and_passes_at_any_moment_make_each_once(work: Stage) -> None:
    work.put(work.definition(every=None, cron="* * * * *", timezone="America/New_York"))
    for _ in range(3):
        work.tick()
        work.connection.execute("UPDATE runlane.schedule SET decided_until = decided_until - interval '3.7 s', look_at = clock_timestamp()")
    found = fired(work)
    assert len(found) >= 4
    assert [fire - found[0] for fire in found] == [timedelta(minutes=number) for number in range(len(found))]
    assert found[0].timestamp() % 60 == 0


def test_ticks_that_decide_at_once_make_one_run_for_each_fire(
    work: Stage, other_storage: PostgresStorage, third_storage: PostgresStorage
) -> None:
    work.put(*(work.definition(f"s{number}") for number in range(5)))
    for _ in range(3):
        work.miss(3)
        decided = work.plans()
        stores = (work.storage, other_storage, third_storage)
        done = at_once(*(partial(store.schedules.materialize, decided) for store in stores))
        assert sorted(len(one.decided) for one in done) == [0, 0, 5]
    doubled = "SELECT count(*) FROM (SELECT meta->>'schedule_id', meta->>'fire_at' FROM runlane.run GROUP BY 1, 2 HAVING count(*) > 1) x"
    assert work.value(doubled) == 0
    assert work.value("SELECT count(*) FROM runlane.run") == len(fired(work))


def test_the_database_itself_refuses_a_second_run_for_a_fire(work: Stage) -> None:
    work.put(work.definition())
    work.tick()
    with pytest.raises(psycopg.errors.UniqueViolation):
        work.connection.execute("INSERT INTO runlane.schedule_fire SELECT * FROM runlane.schedule_fire LIMIT 1")


@pytest.mark.parametrize(("policy", "count"), [("skip", 0), ("latest", 1), ("all", 10)])
def test_after_ten_fires_without_a_tick(work: Stage, policy: Any, count: int) -> None:
    work.put(work.definition(catch_up=policy))
    work.miss(10)
    made = work.tick()
    late = [wakeup for wakeup in made.wakeups if not wakeup.hint]
    assert len(late) == count
    assert made.made - count == 2
    assert statuses(work).count("queued") == count
    assert work.tick().made == 0


def test_what_is_put_in_force_again_without_a_change_goes_on(work: Stage) -> None:
    work.put(work.definition())
    work.tick()
    assert work.put(work.definition()) == {}
    assert "cancelled" not in statuses(work)
    assert work.value("SELECT count(*) FROM runlane.schedule_change") == 1
    # Looked at again, for a release that knows newer zones.
    assert work.tick().decided == {"s"}


@pytest.mark.parametrize(
    "changed",
    [{"jitter": timedelta(seconds=1)}, {"catch_up": "all"}, {"payload": '{"new":true}'}, {"priority": 5}, {"enabled": False}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_changed_schedule_takes_back_what_the_old_one_made_ahead(work: Stage, changed: dict[str, Any]) -> None:
    work.put(work.definition())
    old = ids(work.tick().wakeups)
    assert work.put(work.definition(**changed)) == {"s": "updated"}
    assert {work.status(run_id) for run_id in old} == {Status.CANCELLED}
    (event,) = (one for one in work.storage.runs.list_events(old[0]) if one.type == "run.cancelled")
    assert (event.actor, event.data) == ("ada", {"reason": "schedule_changed"})
    assert work.tick().made == (2 if changed.get("enabled", True) else 0)
    change, actor, before, after = work.connection.execute(
        "SELECT change, actor, before->'run'->>'task', after->'run'->>'task' FROM runlane.schedule_change ORDER BY changed_at DESC"
    ).fetchone() or ("", "", "", "")
    assert (change, actor, before, after) == ("updated", "ada", "noop", "noop")


def test_a_fire_that_has_come_is_the_old_definitions_though_its_jitter_is_not_over(work: Stage) -> None:
    work.put(work.definition(jitter=timedelta(seconds=90)))
    _, *ahead = ids(work.tick().wakeups)
    came = work.between_fire_and_due()
    work.put(work.definition(jitter=timedelta(seconds=90), payload='{"new":true}'))
    assert work.status(came) is Status.SCHEDULED
    assert {work.status(run_id) for run_id in ahead} == {Status.CANCELLED}
    work.tick()
    assert work.value("SELECT count(*) FROM runlane.schedule_fire WHERE fire_at < clock_timestamp()") == 1


@pytest.mark.parametrize(
    "stops",
    [
        Stage.put,
        lambda work: work.put(work.definition(enabled=False)),
        lambda work: work.storage.schedules.pause("s", actor="ada"),
    ],
    ids=["removed", "disabled", "paused"],
)
def test_what_stops_a_schedule_stops_the_run_whose_jitter_is_not_over(work: Stage, stops: Callable[[Stage], Any]) -> None:
    work.put(work.definition())
    work.tick()
    came = work.between_fire_and_due()
    stops(work)
    assert work.status(came) is Status.CANCELLED
    assert [one.last_run_id for one in work.storage.schedules.list_schedules()] in ([], [came])
    work.storage.schedules.resume("s", actor="ada")
    assert all(wakeup.hint for wakeup in work.tick().wakeups)


def test_what_an_outage_missed_is_made_up_for_by_the_new_definition(work: Stage) -> None:
    passed = datetime.now(UTC) - timedelta(hours=1)
    work.put(work.definition("often", catch_up="all"), work.definition("once", every=None, run_at=passed))
    work.miss(60)
    changed = [
        work.definition("often", catch_up="all", jitter=timedelta(seconds=1), payload='{"new":true}'),
        work.definition("once", every=None, run_at=passed, priority=1),
    ]
    assert work.storage.schedules.write_schedules(changed, actor="ada").passed == ()
    work.tick()
    found = work.connection.execute("SELECT meta->>'schedule_id', count(*) FROM runlane.run GROUP BY 1 ORDER BY 1").fetchall()
    assert found == [("often", 60 + 2), ("once", 1)]
    # A deploy later nothing of it is made again.
    work.put(*changed)
    assert work.tick().made == 0


def test_a_new_timing_begins_now_and_what_the_old_one_missed_is_told(work: Stage) -> None:
    work.put(work.definition(catch_up="all"))
    work.miss(10)
    written = work.storage.schedules.write_schedules([work.definition(catch_up="all", every=timedelta(days=3650))], actor="ada")
    (was,) = written.passed
    assert (was.schedule_id, was.timing) == ("s", replace(work.timing, catch_up="all"))
    skipped = passed_over(was)
    assert skipped is not None
    assert timedelta(0) <= skipped.since - was.decided_until <= work.every
    assert work.tick().made == 0


@pytest.mark.parametrize("stop", ["paused", "disabled"])
def test_what_was_stopped_makes_up_for_nothing_when_the_code_changes(work: Stage, stop: str) -> None:
    work.put(work.definition(catch_up="all", enabled=stop != "disabled"))
    if stop == "paused":
        work.storage.schedules.pause("s", actor="ada")
    work.connection.execute("UPDATE runlane.schedule SET decided_until = clock_timestamp() - %s", (work.every * 10,))
    written = work.storage.schedules.write_schedules([work.definition(catch_up="all", priority=1)], actor="ada")
    assert written.passed == ()
    work.storage.schedules.resume("s", actor="ada")
    assert work.tick().made == 2


def test_a_pass_that_began_before_a_deploy_does_not_undo_that_all_are_looked_at_again(work: Stage) -> None:
    work.put(work.definition())
    decided = work.plans()
    work.put(work.definition())
    assert work.storage.schedules.materialize(decided) == Materialized()
    assert work.tick().decided == {"s"}


def test_a_queue_that_is_not_there_is_refused_when_schedules_are_put_in_force(work: Stage) -> None:
    work.put(work.definition())
    stray = work.definition("stray")
    with pytest.raises(ConfigurationError, match="queue 'elsewhere' is not in the database") as raised:
        work.put(work.definition(), stray._replace(run=stray.run._replace(queue="elsewhere")))
    assert raised.value.code == "queue_not_migrated"
    assert [one.schedule_id for one in work.storage.schedules.list_schedules()] == ["s"]


def test_a_tick_whose_clock_was_a_year_ahead_ends_no_schedule(work: Stage) -> None:
    work.put(work.definition("plain"), work.definition("single", singleton_key="k", singleton_mode="latest"))
    for due in work.storage.schedules.due_schedules(limit=100):
        work.storage.schedules.materialize([plan(due._replace(now=due.now + timedelta(days=365)), AHEAD)])
    before = set(fired(work))
    assert work.tick().decided == {"plain", "single"}
    now = work.value("SELECT clock_timestamp()")
    assert sum(now < fire < now + AHEAD for fire in fired(work) if fire not in before) >= 2
    assert work.plans() == ()


def test_a_removed_schedule_does_not_fire_any_more(work: Stage) -> None:
    work.put(work.definition("gone"), work.definition("kept"))
    work.tick()
    assert work.put(work.definition("kept")) == {"gone": "removed"}
    left = work.connection.execute(
        "SELECT s.meta->>'schedule_id', s.status, count(*) FROM runlane.run_state s GROUP BY 1, 2 ORDER BY 1"
    ).fetchall()
    assert left == [("gone", "cancelled", 2), ("kept", "scheduled", 2)]
    assert [one.schedule_id for one in work.storage.schedules.list_schedules()] == ["kept"]
    assert work.put(work.definition("gone"), work.definition("kept")) == {"gone": "created"}
    assert work.tick().made == 2


def test_a_fire_that_is_due_already_is_not_taken_back(work: Stage) -> None:
    work.put(work.definition())
    work.miss(5)
    (due,) = (wakeup for wakeup in work.tick().wakeups if not wakeup.hint)
    assert work.put() == {"s": "removed"}
    assert ids(work.claim(due.run_id).claims) == [due.run_id]


def test_a_run_made_ahead_that_was_started_early_is_not_stopped(work: Stage) -> None:
    work.put(work.definition())
    early, *later = ids(work.tick().wakeups)
    work.reschedule(early, timedelta(0))
    claim = work.claim_one(early)
    assert work.storage.schedules.pause("s", actor="ada") == (len(later), ())
    assert work.status(early) is Status.RUNNING
    assert not work.storage.deliveries.read_leases({early: claim.token})[0].cancellation_requested
    work.succeed(claim)
    work.storage.schedules.resume("s", actor="ada")
    assert work.tick().made == len(fired(work)) - 1


def test_a_run_that_was_brought_forward_is_due_and_one_put_off_is_not(work: Stage) -> None:
    work.put(work.definition())
    early, late = ids(work.tick().wakeups)
    work.connection.execute("UPDATE runlane.schedule_fire SET due_at = clock_timestamp() - interval '1 s' WHERE run_id = %s", (late,))
    work.reschedule(early, timedelta(0))
    work.reschedule(late, timedelta(hours=1))
    work.storage.schedules.pause("s", actor="ada")
    assert work.status(early) is Status.QUEUED
    assert work.status(late) is Status.CANCELLED
    # Its fire is made: it does not come again.
    work.storage.schedules.resume("s", actor="ada")
    assert work.tick().made == 1


def test_a_run_that_waits_for_its_next_attempt_is_not_stopped(work: Stage) -> None:
    work.put(work.definition())
    early, _ = ids(work.tick().wakeups)
    work.reschedule(early, timedelta(0))
    claim = work.claim_one(early)
    work.settle(settlement(claim, OutcomeKind.RETRY, delay=timedelta(hours=1)))
    work.storage.schedules.pause("s", actor="ada")
    assert work.status(early) is Status.RETRYING


def test_a_paused_schedule_makes_nothing_and_what_it_missed_is_not_made_up_for(work: Stage) -> None:
    work.put(work.definition(catch_up="all"))
    ahead = ids(work.tick().wakeups)
    decided = work.plans()
    assert work.storage.schedules.pause("s", actor="ada") == (2, ())
    assert work.storage.schedules.pause("s", actor="ada") == (0, ())
    assert {work.status(run_id) for run_id in ahead} == {Status.CANCELLED}
    assert (work.plans(), work.storage.schedules.materialize(decided)) == ((), Materialized())
    work.connection.execute("UPDATE runlane.schedule SET decided_until = clock_timestamp() - interval '1 hour'")
    assert work.storage.schedules.resume("s", actor="ada")
    made = work.tick()
    assert all(wakeup.hint for wakeup in made.wakeups)
    assert made.made == 2
    changes = work.connection.execute("SELECT change FROM runlane.schedule_change ORDER BY changed_at").fetchall()
    assert changes == [("created",), ("paused",), ("resumed",)]


def test_a_pause_outlives_a_change_of_the_code(work: Stage) -> None:
    work.put(work.definition())
    work.storage.schedules.pause("s", actor="ada")
    work.put(work.definition(priority=1))
    assert work.plans() == ()
    (stored,) = work.storage.schedules.list_schedules("s")
    assert stored.paused_at is not None


def test_a_schedule_that_is_not_there_is_answered_by_nothing(work: Stage) -> None:
    store = work.storage.schedules
    assert (store.pause("x", actor=None), store.resume("x", actor=None), store.trigger("x", actor=None)) == (None, False, None)
    assert store.list_schedules("x") == ()


@pytest.mark.parametrize("takes_back", [Stage.put, lambda work: work.storage.schedules.pause("s", actor="ada")], ids=["removed", "paused"])
def test_a_tick_that_meets_a_change_leaves_no_run_behind(
    work: Stage, other_storage: PostgresStorage, takes_back: Callable[[Stage], Any]
) -> None:
    for _ in range(5):
        work.put(work.definition())
        work.storage.schedules.resume("s", actor="ada")
        decided = work.plans()
        at_once(partial(other_storage.schedules.materialize, decided), partial(takes_back, work))
        assert work.value("SELECT count(*) FROM runlane.timer") == 0
        work.put()


def test_a_tick_that_dies_before_its_commit_has_decided_nothing(work: Stage, dsn: str) -> None:
    work.put(work.definition())
    decided = work.plans()
    with psycopg.connect(dsn) as dying:
        materialize_on(dying, decided)
        dying.rollback()
    assert work.value("SELECT count(*) FROM runlane.run") == 0
    assert work.tick().made == 2


def materialize_on(connection: psycopg.Connection, decided: Sequence[Plan]) -> None:
    """The statement of `materialize` in a transaction that stays open."""

    class Once:
        def run(self, name: str, parameters: Any) -> list[Any]:
            text = f"SELECT * FROM runlane.{name}_v1(%(plans)s::json, %(fires)s::json)"
            return connection.execute(text.encode(), parameters).fetchall()

    PostgresScheduleStore(Once()).materialize(decided)  # type: ignore[arg-type]


def test_a_fire_of_a_full_queue_waits_for_its_slot(work: Stage) -> None:
    work.queues(Queue("work", concurrency_limit=1))
    holder = work.claim_one(work.trigger_one("work"))
    work.put(work.definition())
    work.miss(2)
    made = work.tick()
    assert (made.made, [wakeup.hint for wakeup in made.wakeups]) == (3, [True, True])
    assert len(work.succeed(holder).wakeups) == 1


def test_a_fire_whose_key_is_taken_waits_for_the_active_run_and_the_newest_stays(work: Stage) -> None:
    active = work.claim_one(work.trigger_one("work", singleton_key="k"))
    work.put(work.definition(catch_up="all", singleton_key="k", singleton_mode="latest"))
    work.miss(3)
    # Of the fires ahead only the first.
    assert work.tick().made == 3 + 1
    assert statuses(work).count("cancelled") == 3
    (promoted,) = work.succeed(active).wakeups
    record = work.storage.runs.get_run(promoted.run_id)
    assert record is not None
    assert record.source is Source.SCHEDULE
    assert record.due_at > work.value("SELECT clock_timestamp()")


def test_a_pause_takes_back_a_fire_that_waits_for_its_key(work: Stage) -> None:
    work.claim_one(work.trigger_one("work", singleton_key="k"))
    work.put(work.definition(singleton_key="k", singleton_mode="latest"))
    assert work.tick().made == 1
    assert work.storage.schedules.pause("s", actor="ada") == (1, ())
    assert statuses(work).count("cancelled") == 1


def test_a_run_beside_the_fires_is_made_paused_or_not(work: Stage) -> None:
    work.put(work.definition(payload='{"a":1}'))
    work.storage.schedules.pause("s", actor="ada")
    made = work.storage.schedules.trigger("s", actor="ada")
    assert made is not None
    assert (made.task, made.queue, ids(made.wakeups)) == ("noop", "work", [made.run.run_id])
    record = work.storage.runs.get_run(made.run.run_id)
    assert record is not None
    assert (record.payload, record.meta, record.actor, record.source) == ({"a": 1}, {"schedule_id": "s"}, "ada", Source.SCHEDULE)
    assert fired(work) == []


def test_fires_are_kept_for_a_day_and_the_last_of_each_for_as_long_as_it_is_the_last(work: Stage) -> None:
    work.put(work.definition("s"), work.definition("rare", every=timedelta(days=3650)))
    run_id = work.trigger_one("work")
    for name, age in (("s", "3 days"), ("s", "2 days"), ("s", "2 hours"), ("rare", "3 days")):
        work.connection.execute(
            "INSERT INTO runlane.schedule_fire SELECT %s, t, t, %s FROM (SELECT clock_timestamp() - %s::interval t) x",
            (name, run_id, age),
        )
    work.tick()
    now = work.value("SELECT clock_timestamp()")
    past = work.connection.execute("SELECT schedule, count(*) FROM runlane.schedule_fire WHERE fire_at < %s GROUP BY 1", (now,)).fetchall()
    assert sorted(past) == [("rare", 1), ("s", 1)]
    stored = {one.schedule_id: one for one in work.storage.schedules.list_schedules()}
    assert stored["rare"].last_run_id == run_id
    assert stored["s"].last_fire_at is not None


def test_differences_from_the_code_are_told_before_they_are_put_in_force(work: Stage) -> None:
    work.put(work.definition("same"), work.definition("old"), work.definition("changed"), work.definition("off"))
    code = [work.definition("same"), work.definition("changed", priority=1), work.definition("off", enabled=False), work.definition("new")]
    told = dict(work.storage.schedules.compare(code))
    assert told == {"old": "removed", "changed": "updated", "off": "updated", "new": "created"}
    assert work.put(*code) == told
    assert work.storage.schedules.compare(code) == {}


def test_two_who_put_schedules_in_force_at_once_do_it_once(work: Stage, other_storage: PostgresStorage) -> None:
    code = [work.definition(f"s{number}") for number in range(20)]
    moves = [partial(store.schedules.write_schedules, code, actor="a") for store in (work.storage, other_storage)]
    assert sorted(len(written.changes) for written in at_once(*moves)) == [0, 20]


def test_one_that_this_release_cannot_read_is_looked_at_again_later(work: Stage) -> None:
    work.put(work.definition())
    work.connection.execute(
        """UPDATE runlane.schedule SET definition = '{"timing":{"lunar":1},"run":{"task":"t","queue":"work","payload":1}}'"""
    )
    assert work.tick().made == 0
    assert work.plans() == ()
    (stored,) = work.storage.schedules.list_schedules()
    assert (stored.timing, stored.task) == (None, "t")


def test_the_runs_of_a_fire_with_jitter_are_due_after_it(work: Stage) -> None:
    work.put(work.definition(jitter=timedelta(seconds=50)))
    (one,) = work.plans()
    work.storage.schedules.materialize([one])
    found = work.connection.execute("SELECT fire_at, due_at FROM runlane.schedule_fire ORDER BY 1").fetchall()
    assert [Fire(*row) for row in found] == list(one.fires)
    assert any(due > fire for fire, due in found)
