"""Triggering in the caller's transaction: inserts of its own rows, nothing shared locked, and gone if the caller rolls back."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from tests.postgres.factories import Lane, ids, new_run

pytestmark = pytest.mark.postgres
HOUR = timedelta(hours=1)
EMPTY = (
    "run",
    "event",
    "inbox",
    "timer",
    "waiting",
    "dispatch",
    "partition",
    "tenant",
    "deadline",
    "queue_counter_delta",
    "idempotency_key",
    "singleton_key",
    "successor",
)


@pytest.fixture(params=[None, 1], ids=["unlimited", "limit1"])
def work(request: pytest.FixtureRequest, lane: Lane) -> Lane:
    lane.queues(Queue("work", concurrency_limit=request.param))
    return lane


def everything() -> list[object]:
    return [
        new_run("work", tenant="t", concurrency_key="k"),
        new_run("work", delay=HOUR, start_timeout=HOUR, finish_timeout=HOUR),
        new_run("work", idempotency_key="i", payload_hash="h", singleton_key="s"),
    ]


def test_a_rolled_back_caller_leaves_nothing(work: Lane, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        batch = work.storage.triggers.record_runs(caller, everything())
        assert len(batch.runs) == 3
        caller.rollback()
    for table in EMPTY:
        assert work.value(f"SELECT count(*) FROM runlane.{table}") == 0, table


def test_a_committed_caller_leaves_runs_that_wait_for_a_dispatch(work: Lane, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        batch = work.storage.triggers.record_runs(caller, everything())
    assert batch.wakeups == ()
    assert [work.status(run.run_id) for run in batch.runs] == [Status.QUEUED, Status.SCHEDULED, Status.QUEUED]
    assert work.value("SELECT count(*) FROM runlane.dispatch") == 0
    assert work.storage.queues.stats(["work"])[0].waiting == 3
    assert sorted(ids(work.storage.triggers.dispatch(["work"]))) == [batch.runs[0].run_id, batch.runs[2].run_id]


def test_the_tick_sends_recorded_runs_on_their_way(work: Lane, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        (run,) = work.storage.triggers.record_runs(caller, [new_run("work")]).runs
    folded = work.storage.maintenance.fold_recorded(limit=10)
    assert (folded.count, ids(folded.wakeups)) == (1, [run.run_id])
    assert work.storage.maintenance.fold_recorded(limit=10).count == 0


def test_a_caller_that_is_still_open_locks_no_row_that_others_share(work: Lane, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        work.storage.triggers.record_runs(caller, everything())
        held = work.connection.execute(
            "SELECT l.locktype, c.relname, l.mode FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation WHERE l.pid = %s"
            " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            (caller.info.backend_pid,),
        ).fetchall()
        assert {mode for kind, _, mode in held if kind == "relation"} <= {"AccessShareLock", "RowExclusiveLock"}
        assert [row for row in held if row[0] in ("advisory", "tuple")] == []
        assert not {name for _, name, mode in held if mode == "RowExclusiveLock"} & {
            "queue",
            "partition",
            "tenant",
            "queue_counter",
            "dispatch",
        }
        caller.rollback()


def test_nobody_waits_for_a_caller_that_is_still_open(work: Lane, dsn: str, other_storage: PostgresStorage) -> None:
    work.connection.execute("SELECT set_config('lock_timeout', '2s', false)")
    with psycopg.connect(dsn) as caller:
        work.storage.triggers.record_runs(caller, [new_run("work", concurrency_key="k", tenant="t"), new_run("work", delay=HOUR)])
        batch = other_storage.triggers.trigger_runs([new_run("work", concurrency_key="k", tenant="t")], eager=True)
        assert len(batch.wakeups) == 1
        assert work.drain(batch.wakeups) == ids(batch.wakeups)
        assert work.storage.maintenance.fold_recorded(limit=10).count == 0
        work.storage.queues.pause("work", tenant=None, concurrency_key=None, actor=None)
        work.storage.queues.resume("work", tenant=None, concurrency_key=None, actor=None)
    assert len(work.storage.triggers.dispatch(["work"])) == 1


def test_a_timer_whose_time_came_before_its_transaction_ended_is_sent_after_it(work: Lane) -> None:
    run_id = work.trigger(new_run("work", delay=HOUR), eager=False).runs[0].run_id
    work.connection.execute(b"UPDATE runlane.timer SET due_at = clock_timestamp() - interval '10 seconds'")
    assert ids(work.storage.triggers.dispatch(["work"])) == [run_id]
    assert ids(work.claim(run_id).claims) == [run_id]


def test_a_caller_sees_its_own_runs_and_nobody_else_does(work: Lane, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        (run,) = work.storage.triggers.record_runs(caller, [new_run("work")]).runs
        assert caller.execute("SELECT count(*) FROM runlane.run WHERE run_id = %s", (run.run_id,)).fetchone() == (1,)
        assert work.storage.runs.get_run(run.run_id) is None
        assert [refusal.reason for refusal in work.claim(run.run_id).refusals] == ["not_found"]


def test_a_row_factory_of_the_callers_does_not_matter(work: Lane, dsn: str) -> None:
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as caller:
        assert len(work.storage.triggers.record_runs(caller, [new_run("work")]).runs) == 1
        assert caller.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def test_the_sql_function_does_the_same_for_other_languages(work: Lane) -> None:
    options = '{"concurrency_key": "k", "tenant": "t", "priority": 5, "actor": "sql"}'
    run_id = work.value("SELECT runlane.trigger('noop', '{\"n\": 1}', 'work', %s::json)", options)
    record = work.storage.runs.get_run(str(run_id))
    assert record is not None
    assert (record.task, record.payload, record.tenant, record.concurrency_key, record.priority, record.actor) == (
        "noop", {"n": 1}, "t", "k", 5, "sql",
    )  # fmt: skip
    assert ids(work.storage.triggers.dispatch(["work"])) == [str(run_id)]


def test_a_deferred_trigger_reserves_nothing(work: Lane) -> None:
    batch = work.trigger(*everything(), eager=False)
    assert batch.wakeups == ()
    assert work.value("SELECT count(*) FROM runlane.dispatch") == 0
