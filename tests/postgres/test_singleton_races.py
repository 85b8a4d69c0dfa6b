"""Triggers of one key against each other, the end of its active run, and cancels: in both orders, and from many processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from runlane.adapters.postgres.rows import encode_runs
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import UnavailableError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import Status, TriggerOutcome
from runlane.ports.stores import NewRun, TriggerBatch
from tests.postgres.ends import ENDS, claimed
from tests.postgres.factories import Lane, at_once, ids, new_run, settlement
from tests.postgres.workers import run_processes, trigger_in_turn
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.postgres, pytest.mark.thorough]
HOUR = timedelta(hours=1)
ROUNDS = 5


@pytest.fixture
def work(lane: Lane) -> Lane:
    lane.queues(Queue("work", concurrency_limit=2))
    return lane


def keyed(mode: str = "latest", key: str = "s", **options: Any) -> NewRun:
    return new_run("work", singleton_key=key, singleton_mode=mode, **options)


def owner(lane: Lane, key: str = "s") -> RunId:
    return lane.trigger_one("work", singleton_key=key, concurrency_key=key, start_timeout=HOUR, finish_timeout=HOUR)


def held(lane: Lane) -> int:
    return int(lane.value("SELECT count(*) FROM runlane.successor"))


@pytest.mark.parametrize("end", ENDS)
def test_a_trigger_that_comes_first_is_promoted_by_the_end_that_waits_for_it(
    work: Lane, dsn: str, other_storage: PostgresStorage, end: str
) -> None:
    finish = ENDS[end](work, owner(work))
    with psycopg.connect(dsn) as caller, ThreadPoolExecutor(1) as pool:
        caller.execute("SELECT runlane.trigger_runs_v1(%s::json, true)", (encode_runs([keyed()]),))
        ending = pool.submit(finish, other_storage)
        work.await_waiters(1)
        caller.commit()
        wakeups = ending.result(timeout=PATIENCE)
    (claim,) = claimed(work, wakeups)
    assert held(work) == 0
    work.succeed(claim)


@pytest.mark.parametrize("end", ENDS)
def test_a_trigger_that_comes_second_waits_for_the_end_and_starts(
    work: Lane, dsn: str, other_storage: PostgresStorage, third_storage: PostgresStorage, end: str
) -> None:
    finish = ENDS[end](work, owner(work))
    with psycopg.connect(dsn) as blocker, ThreadPoolExecutor(2) as pool:
        # Every end counts, after it has locked the key.
        blocker.execute("SELECT 1 FROM runlane.queue_counter FOR UPDATE")
        ending = pool.submit(finish, other_storage)
        work.await_waiters(1)
        trigger = pool.submit(third_storage.triggers.trigger_runs, [keyed()], eager=True)
        work.await_waiters(2)
        blocker.commit()
        assert ending.result(timeout=PATIENCE) == ()
        batch = trigger.result(timeout=PATIENCE)
    assert ids(batch.wakeups) == [batch.runs[0].run_id]
    assert held(work) == 0


@pytest.mark.parametrize("mode", ["latest", "cancel"])
@pytest.mark.parametrize("end", ["succeeds", "is cancelled while it waits", "hands its slot over"])
def test_a_trigger_and_an_end_at_once_start_one_run(work: Lane, other_storage: PostgresStorage, end: str, mode: str) -> None:
    for _ in range(ROUNDS):
        finish = ENDS[end](work, owner(work))
        sent: list[RunId] = []
        moves: list[Callable[[], object]] = [
            lambda sent=sent, finish=finish: sent.extend(ids(finish(work.storage))),
            lambda sent=sent: sent.extend(ids(other_storage.triggers.trigger_runs([keyed(mode)], eager=True).wakeups)),
        ]
        at_once(*moves)
        (run_id,) = sent
        assert held(work) == 0
        work.succeed(work.claim_one(run_id))


@pytest.mark.parametrize(
    "modes", [("latest", "latest"), ("latest", "return"), ("cancel", "latest"), ("cancel", "cancel"), ("cancel", "return")]
)
def test_two_triggers_for_a_free_key_leave_one_active_run(work: Lane, other_storage: PostgresStorage, modes: tuple[str, str]) -> None:
    for _ in range(ROUNDS):
        first, second = at_once(
            lambda: work.trigger(keyed(modes[0])), lambda: other_storage.triggers.trigger_runs([keyed(modes[1])], eager=True)
        )
        runs = {run.run_id for batch in (first, second) for run in batch.runs}
        _one_after_another(work, runs)


def test_triggers_of_one_key_from_many_threads_leave_the_last_to_get_the_key(
    work: Lane, storages: Callable[[int], list[PostgresStorage]]
) -> None:
    claim = work.claim_one(owner(work))
    batches: list[TriggerBatch] = at_once(*(lambda s=storage: s.triggers.trigger_runs([keyed()], eager=True) for storage in storages(6)))
    (survivor,) = ids(work.succeed(claim).wakeups)
    assert _replaced_in_turn(work, [batch.runs[0].run_id for batch in batches]) == survivor


def test_a_successor_that_is_cancelled_while_it_is_promoted_ends_once(work: Lane, other_storage: PostgresStorage) -> None:
    for _ in range(ROUNDS):
        claim = work.claim_one(owner(work))
        successor = work.trigger(keyed()).runs[0].run_id
        at_once(lambda claim=claim: work.succeed(claim), lambda successor=successor: _cancel(other_storage, successor))
        assert work.status(successor) is Status.CANCELLED
        assert held(work) == 0
        assert work.trigger(keyed()).runs[0].outcome is TriggerOutcome.CREATED
        work.cancel(RunId(work.value("SELECT run_id::text FROM runlane.singleton_key")))


def test_a_trigger_behind_a_recorded_run_that_is_cancelled_while_the_fold_promotes_it_is_not_forgotten(
    work: Lane, dsn: str, other_storage: PostgresStorage, third_storage: PostgresStorage
) -> None:
    """Recorded after its active run had ended, it has no key until the fold commits."""
    claim = work.claim_one(owner(work))
    with psycopg.connect(dsn) as caller:
        recorded = work.storage.triggers.record_runs(caller, [keyed()]).runs[0].run_id
        work.succeed(claim)
        caller.commit()
    with psycopg.connect(dsn) as fold, psycopg.connect(dsn) as blocker, ThreadPoolExecutor(2) as pool:
        fold.execute("SELECT runlane.fold_successors_v1(10)")
        cancelling = pool.submit(_cancel, other_storage, recorded)
        work.await_waiters(1)
        # Every end counts, after it has locked the key.
        blocker.execute("SELECT 1 FROM runlane.queue_counter FOR UPDATE")
        fold.commit()
        until(lambda: not held(work))
        work.await_waiters(1)
        triggering = pool.submit(third_storage.triggers.trigger_runs, [keyed()], eager=True)
        until(lambda: triggering.done() or work.lock_waiters() >= 2)
        blocker.commit()
        started = [*ids(cancelling.result(timeout=PATIENCE)), *ids(triggering.result(timeout=PATIENCE).wakeups)]
    assert started == [triggering.result().runs[0].run_id]
    assert work.status(recorded) is Status.CANCELLED


def test_a_cancel_and_a_settle_of_the_active_run_promote_its_successor_once(work: Lane, other_storage: PostgresStorage) -> None:
    for _ in range(ROUNDS):
        claim = work.claim_one(owner(work))
        successor = work.trigger(keyed()).runs[0].run_id
        settled, _ = at_once(lambda claim=claim: work.succeed(claim).wakeups, lambda claim=claim: _cancel(other_storage, claim.run_id))
        assert ids(settled) == [successor]
        work.succeed(work.claim_one(successor))


@pytest.mark.parametrize("end", ENDS)
def test_an_end_that_dies_before_its_commit_leaves_the_successor_where_it_was(
    work: Lane, dsn: str, other_storage: PostgresStorage, end: str
) -> None:
    active = owner(work)
    finish = ENDS[end](work, active)
    successor = work.trigger(keyed()).runs[0].run_id
    with psycopg.connect(dsn) as blocker, ThreadPoolExecutor(1) as pool:
        blocker.execute("SELECT 1 FROM runlane.queue_counter FOR UPDATE")
        ending = pool.submit(finish, other_storage)
        work.await_waiters(1)
        work.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with pytest.raises(UnavailableError):
            ending.result(timeout=PATIENCE)
    assert not work.status(active).is_terminal
    assert (held(work), work.status(successor)) == (1, Status.QUEUED)
    assert successor in ids(finish(work.storage))


def test_a_trigger_that_dies_before_its_commit_replaces_nothing(work: Lane, dsn: str) -> None:
    claim = work.claim_one(owner(work))
    successor = work.trigger(keyed()).runs[0].run_id
    with closing(psycopg.connect(dsn)) as caller:
        caller.execute("SELECT runlane.trigger_runs_v1(%s::json, true)", (encode_runs([keyed("cancel")]),))
        work.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (caller.info.backend_pid,))
    assert ids(work.succeed(claim).wakeups) == [successor]


def test_fifty_triggers_from_eight_processes_are_one_more_run_however_the_active_one_ends(work: Lane, dsn: str) -> None:
    ends = {key: ENDS[key](work, owner(work, key)) for key in ENDS}
    run_processes(trigger_in_turn, [(dsn, list(ENDS), 7, seed) for seed in range(8)])
    for key, finish in ends.items():
        rows = work.connection.execute(
            "SELECT run_id::text, payload::text FROM runlane.run WHERE singleton_key = %s AND run_id NOT IN"
            " (SELECT run_id FROM runlane.singleton_key) ORDER BY run_id",
            (key,),
        ).fetchall()
        assert len(rows) == 56
        (claim,) = claimed(work, finish(work.storage))
        assert claim.run_id == _replaced_in_turn(work, [RunId(run_id) for run_id, _ in rows])
        # The last word of whoever had the last word.
        assert json.loads(claim.payload)["turn"] == 6
        assert work.succeed(claim).wakeups == ()
    assert work.value("SELECT count(*) FROM runlane.singleton_key") == 0


def _cancel(storage: PostgresStorage, run_id: RunId) -> tuple[Any, ...]:
    return storage.runs.cancel_run(run_id, actor=None, reason=None)[1]


def _replaced_in_turn(lane: Lane, run_ids: list[RunId]) -> RunId:
    """Each of these runs was superseded by another one, in one chain; the last of it."""
    by = {}
    for run_id in run_ids:
        last = lane.storage.runs.list_events(run_id)[-1]
        if last.type.value == "run.cancelled":
            assert last.data is not None
            by[run_id] = RunId(last.data["by"])
    (survivor,) = set(run_ids) - set(by)
    assert len(set(by.values())) == len(by) == len(run_ids) - 1
    return survivor


def _one_after_another(lane: Lane, runs: set[RunId]) -> None:
    """Work off what is active, a run at a time, until nothing is left of these."""
    while active := [run_id for run_id in runs if not lane.status(run_id).is_terminal]:
        assert len(active) <= 2
        current = RunId(lane.value("SELECT run_id::text FROM runlane.singleton_key"))
        assert current in active
        lane.settle(settlement(lane.claim_one(current), OutcomeKind.SUCCEEDED))
