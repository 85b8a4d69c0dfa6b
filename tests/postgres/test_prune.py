"""Ended runs go with their histories and keys; what is not over stays, and what is left still proves itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from runlane.adapters.postgres.audit import PostgresAudit
from runlane.adapters.postgres.connection import FixedSource, Session
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import TERMINAL, Status, TriggerOutcome
from runlane.ports.operations import PruneFilter
from tests.postgres.factories import Lane, at_once, children, new_run, settlement

pytestmark = pytest.mark.postgres
DAY = timedelta(days=1)
LEFT_BEHIND = ("run", "outcome", "event", "idempotency_key", "singleton_key", "retried")


@pytest.fixture
def work(lane: Lane) -> Lane:
    lane.queues(Queue("work", concurrency_limit=2, total_limit=4), Queue("free"))
    return lane


def remaining(lane: Lane) -> list[RunId]:
    return [run_id for (run_id,) in lane.connection.execute("SELECT run_id::text FROM runlane.run ORDER BY run_id").fetchall()]


def test_only_ended_runs_of_the_asked_statuses_go(work: Lane) -> None:
    kept = {
        "queued": work.trigger_one("free"),
        "scheduled": work.trigger_one("free", delay=DAY),
        "recorded": work.trigger(new_run("free"), eager=False).runs[0].run_id,
        "running": work.claim_one(work.trigger_one("free")).run_id,
        "failed": work.ended("free", OutcomeKind.FAILED),
    }
    gone = work.ended("free"), work.trigger_one("free")
    work.cancel(gone[1])
    step = work.prune(Status.SUCCEEDED, Status.CANCELLED)
    assert (step.matched, step.pruned) == (2, 2)
    assert remaining(work) == sorted(kept.values())
    assert work.storage.runs.get_run(gone[0]) is None
    assert work.value("SELECT count(*) FROM runlane.event WHERE run_id = ANY (%s::uuid[])", list(gone)) == 0


def test_what_ended_later_than_asked_stays(work: Lane) -> None:
    old, fresh = work.ended("free"), work.ended("free")
    work.connection.execute("UPDATE runlane.outcome SET ended_at = ended_at + interval '1 hour' WHERE run_id = %s", (fresh,))
    assert work.prune(older_than=DAY).matched == 0
    assert work.prune().pruned == 1
    assert (old in remaining(work), fresh in remaining(work)) == (False, True)


def test_task_and_queue_narrow_it_and_a_dry_run_only_counts(work: Lane) -> None:
    for queue, task in (("free", "a"), ("free", "b"), ("work", "a")):
        work.ended(queue, task=task)
    assert [
        work.prune(dry_run=True, **chosen).pruned for chosen in ({}, {"task": "a"}, {"queue": "free", "task": "a"}, {"queue": "none"})
    ] == [
        3,
        2,
        1,
        0,
    ]
    assert len(remaining(work)) == 3
    assert work.prune(queue="work", task="a").pruned == 1


def test_it_goes_on_where_it_stopped_oldest_first(work: Lane) -> None:
    ended = [work.ended("free") for _ in range(5)]
    first = work.prune(limit=2)
    assert (first.matched, first.pruned, first.last) == (2, 2, ended[1])
    second = work.prune(after=first.last, limit=3)
    assert (second.matched, second.pruned, second.last) == (3, 3, ended[4])
    assert work.prune(after=second.last).matched == 0


def test_the_owner_of_an_idempotency_key_stays_until_its_time_is_up(work: Lane) -> None:
    keyed = {"task": "t", "payload_hash": "h"}
    held = work.ended("free", idempotency_key="held", idempotency_ttl=DAY, **keyed)
    over = work.ended("free", idempotency_key="over", idempotency_ttl=timedelta(0), **keyed)
    active_only = work.ended("free", idempotency_key="active", **keyed)
    failed = work.ended("free", OutcomeKind.FAILED, idempotency_key="failed", idempotency_ttl=DAY, **keyed)
    assert work.prune(dry_run=True).pruned == 3
    step = work.prune()
    assert (step.matched, step.pruned, remaining(work)) == (4, 3, [held])
    assert work.trigger(new_run("free", idempotency_key="held", **keyed)).runs[0].outcome is TriggerOutcome.DUPLICATE
    for key in ("over", "active", "failed"):
        assert work.trigger(new_run("free", idempotency_key=key, **keyed)).runs[0].outcome is TriggerOutcome.CREATED
    assert {over, active_only, failed}.isdisjoint(remaining(work))


def test_a_pruned_singleton_is_not_taken_for_an_active_one(work: Lane) -> None:
    work.ended("free", singleton_key="s")
    assert work.prune().pruned == 1
    assert work.trigger(new_run("free", singleton_key="s")).runs[0].outcome is TriggerOutcome.CREATED


def test_a_child_keeps_the_id_of_a_source_that_is_gone(work: Lane) -> None:
    failed = work.ended("work", OutcomeKind.FAILED)
    child = work.again(failed, only_failed=True).children[failed].run_id
    work.prune(Status.FAILED)
    record = work.storage.runs.get_run(child)
    assert record is not None
    assert record.source_run_id == failed
    assert work.again(failed).refused[failed].code == "run_not_found"
    work.succeed(work.claim_one(child))
    work.prune()
    assert [work.value(f"SELECT count(*) FROM runlane.{table}") for table in LEFT_BEHIND] == [0] * len(LEFT_BEHIND)


@pytest.mark.parametrize("pruned", [Status.SUCCEEDED, Status.FAILED, None], ids=["succeeded", "failed", "all"])
def test_history_proves_itself_beyond_what_was_pruned(work: Lane, dsn: str, pruned: Status | None) -> None:
    """Failed, succeeded and waiting runs of the same partitions, so that what is pruned leaves gaps among their slots."""
    runs = [one.run_id for one in work.trigger(*(new_run("work", concurrency_key=f"k{place % 2}") for place in range(14))).runs]
    for place, run_id in enumerate(runs[:8]):
        work.settle(settlement(work.claim_one(run_id), OutcomeKind.FAILED if place % 3 else OutcomeKind.SUCCEEDED))
    work.prune(*([pruned] if pruned else []))
    audit = PostgresAudit(Session(FixedSource(dsn), "runlane"))
    assert [finding.violations for finding in audit.check() if not finding.holds] == []
    work.succeed(*(work.claim_one(run_id) for run_id in runs[8:10]))
    assert [finding.violations for finding in audit.check() if not finding.holds] == []
    work.connection.execute("UPDATE runlane.partition SET slot_seq = slot_seq + 1, occupied = occupied")
    assert [finding.invariant for finding in audit.check() if not finding.holds] == [
        "slots of every partition are numbered without gaps, one by one"
    ]
    work.connection.execute("UPDATE runlane.partition SET slot_seq = slot_seq - 1")
    audit.close()


Rival = Callable[[PostgresStorage, RunId], object]
RIVALS: dict[str, Rival] = {
    "another prune": lambda storage, run_id: storage.operations.prune_runs(
        PruneFilter(timedelta(0), TERMINAL), after=None, limit=9, dry_run=False
    ),
    "a rerun": lambda storage, run_id: storage.operations.rerun_runs(children(run_id, queue="free"), only_failed=False),
    "a new owner of its key": lambda storage, run_id: storage.triggers.trigger_runs(
        [new_run("free", task="t", idempotency_key="i", idempotency_ttl=timedelta(0), payload_hash="h", singleton_key="s")], eager=True
    ),
    "a late result": lambda storage, run_id: storage.deliveries.settle_runs([_LATE[run_id]]),
}
_LATE: dict[RunId, object] = {}


@pytest.mark.parametrize("rival", RIVALS)
def test_pruning_beside_others_leaves_nothing_half_done(work: Lane, other_storage: PostgresStorage, rival: str) -> None:
    for _ in range(8):
        run_id = work.trigger_one("free", task="t", idempotency_key="i", idempotency_ttl=timedelta(0), payload_hash="h", singleton_key="s")
        claim = work.claim_one(run_id)
        work.succeed(claim)
        _LATE[run_id] = settlement(claim)
        at_once(work.prune, lambda run_id=run_id: RIVALS[rival](other_storage, run_id))
        counts = {table: work.value(f"SELECT count(*) FROM runlane.{table} WHERE run_id = %s", run_id) for table in LEFT_BEHIND[:3]}
        assert counts["run"] == counts["outcome"] == min(counts["event"], 1)
        work.drain(work.trigger(new_run("free")).wakeups)
        for left in remaining(work):
            work.cancel(left)
        work.prune()
        assert remaining(work) == []


def test_whoever_holds_a_key_or_an_end_is_not_waited_for(work: Lane, dsn: str) -> None:
    keyed = work.ended("free", task="t", idempotency_key="i", idempotency_ttl=timedelta(0), payload_hash="h")
    held = work.ended("free")
    free = work.ended("free")
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT 1 FROM runlane.idempotency_key FOR UPDATE")
        holder.execute("SELECT 1 FROM runlane.outcome WHERE run_id = %s FOR KEY SHARE", (held,))
        step = work.prune()
        holder.rollback()
    assert (step.matched, step.pruned, remaining(work)) == (3, 1, sorted([keyed, held]))
    assert free not in remaining(work)
