"""What ended long ago goes with its week; what has not ended stays and starts, however old it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql

from runlane.adapters.postgres.audit import PostgresAudit
from runlane.adapters.postgres.connection import FixedSource, Session
from runlane.adapters.postgres.migrate import grant
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import RunlaneError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import Status, TriggerOutcome
from tests.postgres.aged import KEPT_FOR, OLD, age_run, make_week, retain_all, weeks
from tests.postgres.factories import Lane, at_once, new_run

pytestmark = pytest.mark.postgres
ALL = ["event", "outcome", "run"]
YEAR = timedelta(days=365)


@pytest.fixture
def old(lane: Lane) -> str:
    """A week whose time is up, empty yet."""
    lane.queues(Queue("work", concurrency_limit=2, total_limit=4), Queue("free"))
    return make_week(lane)


def wake(lane: Lane) -> None:
    """As if those who rest had rested."""
    lane.connection.execute("UPDATE runlane.retention SET rests_until = now() WHERE rests_until IS NOT NULL")


def test_a_week_of_ended_runs_is_dropped_with_what_belongs_to_them(lane: Lane, old: str) -> None:
    keyed = {"task": "t", "payload_hash": "h", "idempotency_key": "k", "idempotency_ttl": timedelta(days=30)}
    gone = [age_run(lane, lane.ended("work", kind, concurrency_key="c")) for kind in (OutcomeKind.SUCCEEDED, OutcomeKind.FAILED)]
    lane.again(gone[1], only_failed=True)
    gone.append(age_run(lane, lane.ended("free", finish_timeout=YEAR, **keyed)))
    lane.connection.execute("UPDATE runlane.idempotency_key SET expires_at = expires_at - %s", (OLD,))
    lane.connection.execute("INSERT INTO runlane.deadline VALUES (now() + interval '1 year', %s, 'finish')", (gone[2],))
    fresh = lane.ended("free")

    retain_all(lane)

    assert old not in weeks(lane)
    assert [lane.storage.runs.get_run(run_id) for run_id in gone] == [None] * 3
    assert lane.status(fresh) is Status.SUCCEEDED
    left = ("retried", "deadline", "idempotency_key", "retention")
    assert [lane.value(f"SELECT count(*) FROM runlane.{table}") for table in left] == [0] * 4
    assert lane.trigger(new_run("free", **keyed)).runs[0].outcome is TriggerOutcome.CREATED


def test_nothing_goes_before_its_time(lane: Lane, old: str) -> None:
    age_run(lane, lane.ended("free"))
    assert not lane.storage.maintenance.retain(keep_for=OLD, limit=500).more
    assert weeks(lane)[old] == ALL


@pytest.mark.parametrize("kept_for", ["23 hours", "-1 year", "0", "1 month -30 days"])
def test_less_than_a_day_is_refused_by_the_database(lane: Lane, old: str, kept_for: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="a day at least"):
        lane.connection.execute("SELECT runlane.retain_v1(%s::interval, 500)", (kept_for,))
    assert weeks(lane)[old] == ALL


def test_no_interval_lists_a_week_that_has_not_ended(lane: Lane, old: str) -> None:
    """A day as intervals compare, of months with 30 days; less than nothing by the calendar."""
    present = set(weeks(lane)) - {old}
    lane.connection.execute("SELECT runlane.retain_v1(make_interval(months => -1200, days => 36001), 1)")
    listed = lane.connection.execute("SELECT to_char(runlane.run_id_time_v1(low) AT TIME ZONE 'UTC', 'YYYYMMDD') FROM runlane.retention")
    assert present.isdisjoint(week for (week,) in listed)


def test_where_runs_are_kept_for_ever_none_goes(lane: Lane, old: str) -> None:
    age_run(lane, lane.ended("free"))
    assert lane.storage.maintenance.retain(keep_for=KEPT_FOR, limit=500).more
    assert not lane.storage.maintenance.retain(keep_for=None, limit=500).more
    assert weeks(lane)[old] == ALL
    assert lane.value("SELECT count(*) FROM runlane.retention") == 0


@pytest.mark.parametrize("kept_for", [None, YEAR], ids=["for ever", "longer"])
def test_a_week_that_is_half_gone_goes_though_runs_are_now_kept(lane: Lane, old: str, kept_for: timedelta | None) -> None:
    age_run(lane, lane.ended("free"))
    while lane.value("SELECT count(*) FROM runlane.week_tables_v1(runlane.week_low_v1(%s)) WHERE stands = 'attached'", old) == 3:
        assert lane.storage.maintenance.retain(keep_for=KEPT_FOR, limit=500).more
    while lane.storage.maintenance.retain(keep_for=kept_for, limit=500).more:
        pass
    assert old not in weeks(lane)


def test_a_pass_is_noted_with_what_failed_in_it(lane: Lane) -> None:
    for failed in (["retain", "due_timers"], []):
        lane.storage.maintenance.note_tick(failed)
        assert lane.connection.execute("SELECT work, failed FROM runlane.upkeep").fetchall() == [("tick", failed)]


def test_a_longer_time_than_before_spares_a_week_that_has_not_begun_to_go(lane: Lane, old: str) -> None:
    run_id = age_run(lane, lane.ended("free"))
    assert lane.storage.maintenance.retain(keep_for=KEPT_FOR, limit=500).more
    assert not lane.storage.maintenance.retain(keep_for=YEAR, limit=500).more
    assert lane.value("SELECT count(*) FROM runlane.retention") == 0
    assert lane.status(run_id) is Status.SUCCEEDED


def test_a_run_scheduled_a_year_ahead_survives_its_week_and_starts(lane: Lane, old: str) -> None:
    ahead = age_run(lane, lane.trigger_one("free", delay=YEAR))
    ended = [age_run(lane, lane.ended("free")) for _ in range(5)]

    retain_all(lane, limit=2)

    assert [lane.storage.runs.get_run(run_id) for run_id in ended] == [None] * 5
    assert weeks(lane)[old] == ALL
    lane.age_timer(ahead)
    assert lane.storage.maintenance.due_timers(look_ahead=timedelta(0), limit=10).count == 1
    lane.succeed(lane.claim_one(ahead))
    assert lane.status(ahead) is Status.SUCCEEDED


STANDS: dict[str, Callable[[Lane], RunId]] = {
    "recorded": lambda lane: lane.trigger(new_run("free"), eager=False).runs[0].run_id,
    "waiting": lambda lane: [lane.trigger_one("work", concurrency_key="c") for _ in range(3)][-1],
    "dispatched": lambda lane: lane.trigger_one("free"),
    "running": lambda lane: lane.claim_one(lane.trigger_one("free")).run_id,
    "successor": lambda lane: [lane.trigger_one("free", task="t", singleton_key="s", singleton_mode="latest") for _ in range(2)][-1],
}


def test_what_has_not_ended_keeps_its_week_wherever_it_stands(lane: Lane, old: str) -> None:
    for where, stand in STANDS.items():
        run_id = age_run(lane, stand(lane))
        before = lane.status(run_id)
        retain_all(lane)
        assert (lane.status(run_id), weeks(lane)[old]) == (before, ALL), where
        lane.connection.execute("DELETE FROM runlane.retention")
        age_run(lane, run_id, timedelta(0), ended=False)


def test_what_ended_late_is_kept_for_its_time_and_then_its_week_goes(lane: Lane, old: str) -> None:
    early, late = age_run(lane, lane.ended("free")), age_run(lane, lane.ended("free"), ended=False)
    retain_all(lane, limit=1)
    assert lane.storage.runs.get_run(early) is None
    assert lane.status(late) is Status.SUCCEEDED
    lane.connection.execute("UPDATE runlane.outcome SET ended_at = ended_at - %s WHERE run_id = %s", (OLD, late))
    retain_all(lane)
    assert weeks(lane)[old] == ALL, "it rests for a day"
    wake(lane)
    retain_all(lane)
    assert old not in weeks(lane)


def test_a_key_that_outlives_the_time_keeps_its_run(lane: Lane, old: str) -> None:
    keyed = {"task": "t", "payload_hash": "h", "idempotency_key": "k", "idempotency_ttl": YEAR}
    owner = age_run(lane, lane.ended("free", **keyed))
    retain_all(lane)
    assert lane.trigger(new_run("free", **keyed)).runs[0].run_id == owner


def test_a_key_that_somebody_holds_is_not_left_without_its_run(lane: Lane, old: str, dsn: str) -> None:
    age_run(lane, lane.ended("free", task="t", payload_hash="h", idempotency_key="k"))
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT 1 FROM runlane.idempotency_key FOR UPDATE")
        retain_all(lane)
        assert weeks(lane)[old] == ALL
    wake(lane)
    retain_all(lane)
    assert old not in weeks(lane)


def test_history_proves_itself_after_weeks_have_gone(lane: Lane, old: str) -> None:
    """The audit at the end of each test: slots of a partition go on from those that went."""
    for _ in range(3):
        age_run(lane, lane.ended("work", concurrency_key="c"))
    retain_all(lane)
    lane.ended("work", concurrency_key="c")
    assert lane.value("SELECT slot_seq FROM runlane.pruned_slots") == 6


class Mortal:
    """A session's `run` or `run_alone` that dies instead of making another statement."""

    def __init__(self, statements: int) -> None:
        self.left = statements

    def wrap(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            self.left -= 1
            if self.left < 0:
                raise RunlaneError("killed", "killed")
            return real(*arguments, **named)

        return call


@pytest.mark.thorough
def test_killed_after_any_statement_the_next_pass_goes_on(lane: Lane, old: str, monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    ahead = lane.trigger_one("free", delay=YEAR)
    audit = PostgresAudit(Session(FixedSource(dsn), "runlane"))
    for statements in range(1, 50):
        make_week(lane)
        gone = age_run(lane, lane.ended("work", concurrency_key="c"))
        mortal, session = Mortal(statements), lane.storage.maintenance._session
        for name in ("run", "run_alone"):
            monkeypatch.setattr(session, name, mortal.wrap(getattr(session, name)))
        with suppress(RunlaneError):
            retain_all(lane)
        monkeypatch.undo()
        # Whatever has gone, nobody takes the run for one that has not ended.
        record = lane.storage.runs.get_run(gone)
        assert record is None or record.status is Status.SUCCEEDED
        assert [finding.violations for finding in audit.check() if not finding.holds] == []
        wake(lane)
        retain_all(lane)
        assert old not in weeks(lane)
        if mortal.left >= 0:
            break
    assert statements > 10
    assert lane.status(ahead) is Status.SCHEDULED
    audit.close()


PENDING = "SELECT count(*) FROM pg_inherits WHERE inhdetachpending"
REFUSED = "SELECT sqlstate, message FROM runlane.retention WHERE sqlstate IS NOT NULL"


@pytest.fixture
def runtime(lane: Lane, dsn: str) -> PostgresStorage:
    """A storage whose role owns nothing."""
    lane.connection.execute("DO $$ BEGIN CREATE ROLE runtime LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    grant(lane.connection, schema="runlane", role="runtime")
    return PostgresStorage(f"{dsn} user=runtime")


@pytest.mark.parametrize("owns", [True, False], ids=["an owner", "a role that owns nothing"])
def test_weeks_go_and_give_way_to_a_long_reader(lane: Lane, old: str, direct_dsn: str, runtime: PostgresStorage, owns: bool) -> None:
    age_run(lane, lane.ended("free"))
    theirs = lane if owns else Lane(runtime, lane.connection)
    with psycopg.connect(direct_dsn) as reader, psycopg.connect(direct_dsn, autocommit=True, options="-c lock_timeout=1s") as other:
        reader.execute("SELECT count(*) FROM runlane.run")
        retain_all(theirs)
        assert (weeks(lane)[old], lane.value(PENDING)) == (ALL, 0), "nothing is asked for that somebody has in use"
        other.execute("SELECT count(*) FROM runlane.run")
    wake(lane)
    retain_all(theirs)
    assert old not in weeks(lane)
    runtime.close()


def test_a_detach_that_was_cut_off_is_finished_before_another_is_asked_for(
    lane: Lane, old: str, direct_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runlane.adapters.postgres.maintenance._DETACH_PATIENCE", 0.1)
    later = make_week(lane, OLD - timedelta(days=14))
    gone = age_run(lane, lane.ended("free"))
    store = lane.storage.maintenance
    assert store.retain(keep_for=KEPT_FOR, limit=500).more
    lane.connection.execute("UPDATE runlane.retention SET swept_to = high")
    with psycopg.connect(direct_dsn) as reader, psycopg.connect(direct_dsn, autocommit=True, options="-c lock_timeout=1s") as other:
        reader.execute("SELECT count(*) FROM runlane.run")
        assert not store._detach("run", f"run_{old}")
        assert lane.value(PENDING) == 1
        other.execute("SELECT count(*) FROM runlane.run")
        other.execute("UPDATE runlane.run SET actor = 'x' WHERE false")
        assert lane.storage.runs.get_run(gone) is None
        lane.ended("free")
        retain_all(lane)
        assert lane.value(PENDING) == 1, "it is not finished over the reader's head"
    # The first week rests; the second one's turn comes first.
    lane.connection.execute("UPDATE runlane.retention SET rests_until = NULL WHERE low = runlane.week_low_v1(%s)", (later,))
    retain_all(lane)
    assert not store._detach("run", f"run_{later}"), "another was faster"
    assert (weeks(lane)[later], lane.connection.execute(REFUSED).fetchall()) == (ALL, [])
    wake(lane)
    retain_all(lane)
    assert {old, later}.isdisjoint(weeks(lane))


def test_a_week_that_cannot_be_dropped_rests_and_says_why_and_later_ones_go(lane: Lane, old: str) -> None:
    later = make_week(lane, OLD - timedelta(days=14))
    lane.connection.execute(f"CREATE VIEW runlane.report AS SELECT * FROM runlane.event_{old}".encode())
    retain_all(lane)
    assert (old in weeks(lane), later in weeks(lane)) == (True, False)
    ((sqlstate, message),) = lane.connection.execute(REFUSED).fetchall()
    assert (sqlstate, "view runlane.report depends on table" in message) == ("2BP01", True)
    assert lane.value("SELECT rests_until > now() + interval '50 minutes' FROM runlane.retention")
    lane.connection.execute("DROP VIEW runlane.report")
    wake(lane)
    retain_all(lane)
    assert old not in weeks(lane)


def test_a_week_that_cannot_be_detached_rests_and_says_why(lane: Lane, old: str) -> None:
    lane.connection.execute("CREATE TABLE runlane.run_rest PARTITION OF runlane.run DEFAULT")
    retain_all(lane)
    ((sqlstate, message),) = lane.connection.execute(REFUSED).fetchall()
    assert (sqlstate, "default partition" in message) == ("55000", True)
    lane.connection.execute("DROP TABLE runlane.run_rest")
    wake(lane)
    retain_all(lane)
    assert old not in weeks(lane)


def test_two_passes_at_once_do_it_once(lane: Lane, old: str, other_storage: PostgresStorage) -> None:
    for _ in range(4):
        age_run(lane, lane.ended("work", concurrency_key="c"))
    at_once(lambda: retain_all(lane, limit=1), lambda: retain_all(Lane(other_storage, lane.connection), limit=1))
    wake(lane)
    retain_all(lane)
    assert old not in weeks(lane)


def test_weeks_go_while_runs_come_and_end(lane: Lane, old: str, other_storage: PostgresStorage) -> None:
    for _ in range(20):
        age_run(lane, lane.ended("free"))

    def work() -> int:
        lively = Lane(other_storage, lane.connection)
        return sum(len(lively.drain(lively.trigger(*(new_run("free") for _ in range(10))).wakeups)) for _ in range(10))

    _, done = at_once(lambda: retain_all(lane, limit=2), work)
    assert done == 100
    assert old not in weeks(lane)


def test_a_trigger_that_finds_no_partition_makes_it(lane: Lane) -> None:
    lane.queues(Queue("free"))
    for week, parents in weeks(lane).items():
        for parent in parents:
            lane.connection.execute(sql.SQL("DROP TABLE runlane.{}").format(sql.Identifier(f"{parent}_{week}")))
    assert lane.ended("free")
    assert len(weeks(lane)) == 5


def test_a_joined_trigger_that_finds_no_partition_says_what_to_do_and_the_next_works(lane: Lane, dsn: str) -> None:
    lane.queues(Queue("free"))
    for week, parents in weeks(lane).items():
        for parent in parents:
            lane.connection.execute(sql.SQL("DROP TABLE runlane.{}").format(sql.Identifier(f"{parent}_{week}")))
    with psycopg.connect(dsn) as caller, pytest.raises(RunlaneError, match="runlane tick") as caught:
        lane.storage.triggers.record_runs(caller, [new_run("free")])
    assert (caught.value.code, caught.value.retryable) == ("partition_missing", True)
    with psycopg.connect(dsn) as caller:
        lane.storage.triggers.record_runs(caller, [new_run("free")])
    assert lane.value("SELECT count(*) FROM runlane.inbox") == 1
