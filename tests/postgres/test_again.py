"""Retries of failed runs and reruns of ended ones: linked children, made once where they must be."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.records import RunFilter
from runlane.domain.run import Source, Status, TriggerOutcome
from tests.postgres.factories import STALE, Lane, at_once, children, ids, new_run, settlement

pytestmark = pytest.mark.postgres
FAILED, SUCCEEDED = OutcomeKind.FAILED, OutcomeKind.SUCCEEDED


@pytest.fixture(params=[None, 1], ids=["unlimited", "limit1"])
def work(request: pytest.FixtureRequest, lane: Lane) -> Lane:
    lane.queues(Queue("work", concurrency_limit=request.param), Queue("other", concurrency_limit=1))
    return lane


def test_a_child_names_its_source_and_is_dispatched_as_any_run(work: Lane) -> None:
    failed = work.ended("work", FAILED)
    batch = work.again(failed, only_failed=True, actor="ann", reason="mended")
    child = batch.children[failed]
    assert (child.outcome, ids(batch.wakeups)) == (TriggerOutcome.CREATED, [child.run_id])
    record = work.storage.runs.get_run(child.run_id)
    assert record is not None
    assert (record.source, record.source_run_id, record.actor) == (Source.MANUAL_RETRY, failed, "ann")
    (created,) = (event for event in work.storage.runs.list_events(child.run_id) if event.sequence == 1)
    assert created.data == {"source": "manual_retry", "source_run_id": failed, "reason": "mended"}
    assert work.claim_one(child.run_id).attempt == 1


def test_what_a_child_is_made_of_is_read_as_it_was_stored(work: Lane) -> None:
    meta = {"order": 7}
    run_id = work.trigger_one(
        "work", task="t", payload='{"a":  1}', tenant="t1", concurrency_key="k", priority=5, singleton_key="s", meta=meta
    )
    (origin,) = work.storage.operations.read_origins([run_id, RunId(STALE)]).values()
    assert (origin.run_id, origin.task, origin.queue, origin.status, origin.payload) == (run_id, "t", "work", Status.QUEUED, '{"a":  1}')
    assert (origin.tenant, origin.concurrency_key, origin.priority, origin.singleton_key) == ("t1", "k", 5, "s")
    assert (origin.meta, origin.child_id) == (meta, None)


@pytest.mark.parametrize("only_failed", [True, False])
def test_every_status_answers_as_the_contract_says(work: Lane, only_failed: bool) -> None:
    """`retry`: failed runs; `rerun`: any terminal run."""
    runs = {
        "queued": work.trigger_one("work", concurrency_key="a"),
        "running": work.claim_one(work.trigger_one("work", concurrency_key="b")).run_id,
        "succeeded": work.ended("work", concurrency_key="c"),
        "failed": work.ended("work", FAILED, concurrency_key="d"),
        "cancelled": work.trigger_one("work", concurrency_key="e"),
        "unknown": RunId(STALE),
    }
    work.cancel(runs["cancelled"])
    batch = work.again(*runs.values(), only_failed=only_failed)
    named = {run_id: name for name, run_id in runs.items()}
    assert {named[run_id] for run_id in batch.children} == ({"failed"} if only_failed else {"succeeded", "failed", "cancelled"})
    codes = {"queued": "run_not_ended", "running": "run_not_ended", "unknown": "run_not_found"}
    if only_failed:
        codes |= {"succeeded": "run_not_failed", "cancelled": "run_not_failed"}
    assert {named[run_id]: refused.code for run_id, refused in batch.refused.items()} == codes


def test_a_failed_run_is_retried_once_and_rerun_as_often_as_asked(work: Lane) -> None:
    failed = work.ended("work", FAILED)
    child = work.again(failed, only_failed=True).children[failed].run_id
    refused = work.again(failed, only_failed=True).refused[failed]
    assert (refused.code, refused.child_id) == ("already_retried", child)
    assert {work.again(failed).children[failed].outcome for _ in range(3)} == {TriggerOutcome.CREATED}


def test_many_children_of_many_queues_are_one_transaction(work: Lane) -> None:
    failed = [work.ended(queue, FAILED, concurrency_key=f"k{place}") for place in range(3) for queue in ("work", "other")]
    runs = [run for place, run_id in enumerate(failed) for run in children(run_id, only_failed=True, queue=("work", "other")[place % 2])]
    succeeded = work.ended("work")
    batch = work.storage.operations.rerun_runs([*runs[:2], *children(succeeded, only_failed=True), *runs[2:]], only_failed=True)
    assert set(batch.children) == set(failed)
    assert set(batch.refused) == {succeeded}
    for run_id, child in batch.children.items():
        record = work.storage.runs.get_run(child.run_id)
        assert record is not None
        assert record.source_run_id == run_id


def test_an_active_singleton_is_answered_and_the_failed_run_can_be_retried_later(work: Lane) -> None:
    failed = work.ended("work", FAILED, singleton_key="s", concurrency_key="a")
    active = work.trigger_one("work", singleton_key="s", concurrency_key="b")
    answer = work.again(failed, only_failed=True, singleton_key="s").children[failed]
    assert (answer.outcome, answer.run_id) == (TriggerOutcome.SINGLETON_ACTIVE, active)
    work.succeed(work.claim_one(active))
    child = work.again(failed, only_failed=True, singleton_key="s").children[failed]
    assert child.outcome is TriggerOutcome.CREATED
    assert work.trigger(new_run("work", singleton_key="s")).runs[0].outcome is TriggerOutcome.SINGLETON_ACTIVE


def test_two_who_retry_the_same_runs_at_once_retry_each_once(work: Lane, other_storage: PostgresStorage) -> None:
    for _ in range(6):
        failed = [work.ended("work", FAILED, concurrency_key=f"k{place}") for place in range(4)]
        mine, theirs = at_once(
            lambda failed=failed: work.again(*failed, only_failed=True),
            lambda failed=failed: other_storage.operations.rerun_runs(children(*reversed(failed), only_failed=True), only_failed=True),
        )
        assert sorted([*mine.children, *theirs.children]) == sorted(failed)
        made = {run_id: child.run_id for batch in (mine, theirs) for run_id, child in batch.children.items()}
        for refused in (mine.refused, theirs.refused):
            assert {run_id: answer.child_id for run_id, answer in refused.items()} == {run_id: made[run_id] for run_id in refused}
        work.storage.operations.cancel_runs(list(made.values()), actor=None, reason=None)


def test_a_retry_and_a_late_result_of_the_same_run_do_not_wait_for_each_other(work: Lane, other_storage: PostgresStorage) -> None:
    for _ in range(6):
        claim = work.claim_one(work.trigger_one("work"))
        work.settle(settlement(claim, FAILED))
        batch, late = at_once(
            lambda claim=claim: work.again(claim.run_id, only_failed=True),
            lambda claim=claim: other_storage.deliveries.settle_runs([settlement(claim)]),
        )
        assert late.refused == (claim.run_id,)
        work.succeed(work.claim_one(batch.children[claim.run_id].run_id))


def test_lists_filter_by_source(work: Lane) -> None:
    failed = work.ended("work", FAILED)
    retried = work.again(failed, only_failed=True).children[failed].run_id
    rerun = work.again(failed).children[failed].run_id
    found = {
        source: [run.run_id for run in work.storage.runs.list_runs(RunFilter(source=source), limit=9, cursor=None).data]
        for source in Source
    }
    assert {source: ids for source, ids in found.items() if ids} == {
        Source.TRIGGER: [failed],
        Source.MANUAL_RETRY: [retried],
        Source.RERUN: [rerun],
    }
    of_status = RunFilter(source=Source.RERUN, statuses=frozenset({Status.QUEUED}))
    assert [run.source_run_id for run in work.storage.runs.list_runs(of_status, limit=9, cursor=None).data] == [failed]


def test_a_group_is_cancelled_over_all_queues_and_ended_runs_are_left(work: Lane) -> None:
    waiting, other, later = work.trigger_one("work"), work.trigger_one("other"), work.trigger_one("work", delay=timedelta(hours=1))
    running = work.claim_one(work.trigger_one("work", concurrency_key="r")).run_id
    ended = work.ended("work", concurrency_key="e")
    statuses, _ = work.storage.operations.cancel_runs([waiting, other, later, running, ended], actor="ann", reason="r")
    assert statuses == {
        waiting: Status.CANCELLED,
        other: Status.CANCELLED,
        later: Status.CANCELLED,
        running: Status.CANCELLATION_REQUESTED,
    }
