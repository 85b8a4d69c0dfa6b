"""One owner per task and key; the key is free when its policy says so, never while the owner is active."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import Status, TriggerOutcome
from runlane.ports.stores import NewRun, RecordedRun
from tests.postgres.factories import Lane, at_once, new_run, settlement

pytestmark = pytest.mark.postgres
DAY = timedelta(days=1)


@pytest.fixture(params=[None, 1], ids=["unlimited", "limit1"])
def work(request: pytest.FixtureRequest, lane: Lane) -> Lane:
    lane.queues(Queue("work", concurrency_limit=request.param))
    return lane


def keyed(key: str = "key", *, ttl: timedelta | None = DAY, payload_hash: str = "h", **options: Any) -> NewRun:
    return new_run("work", idempotency_key=key, idempotency_ttl=ttl, payload_hash=payload_hash, **options)


def trigger(lane: Lane, *runs: NewRun, eager: bool = True) -> RecordedRun:
    return lane.trigger(*runs, eager=eager).runs[-1]


def test_a_duplicate_gets_its_owners_run_back(work: Lane) -> None:
    owner = trigger(work, keyed())
    again = trigger(work, keyed())
    assert (again.run_id, again.outcome, again.status, again.payload_matches) == (
        owner.run_id,
        TriggerOutcome.DUPLICATE,
        Status.QUEUED,
        True,
    )
    assert trigger(work, keyed(payload_hash="other")).payload_matches is False
    assert work.value("SELECT count(*) FROM runlane.run") == 1


def test_a_duplicate_tells_the_status_of_its_owner(work: Lane) -> None:
    owner = trigger(work, keyed())
    claim = work.claim_one(owner.run_id)
    assert trigger(work, keyed()).status is Status.RUNNING
    work.succeed(claim)
    assert trigger(work, keyed()).status is Status.SUCCEEDED
    later = trigger(work, keyed("later", delay=DAY))
    assert trigger(work, keyed("later")).status is Status.SCHEDULED
    assert later.status is Status.SCHEDULED


def test_keys_of_two_tasks_are_two_keys(work: Lane) -> None:
    assert trigger(work, keyed(task="one")).run_id != trigger(work, keyed(task="two")).run_id


@pytest.mark.parametrize("end", ["succeeded", "cancelled"])
def test_an_ended_owner_keeps_the_key_until_its_time_is_up(work: Lane, end: str) -> None:
    owner = trigger(work, keyed())
    work.succeed(work.claim_one(owner.run_id)) if end == "succeeded" else work.cancel(owner.run_id)
    assert trigger(work, keyed()).outcome is TriggerOutcome.DUPLICATE
    work.connection.execute("UPDATE runlane.idempotency_key SET expires_at = clock_timestamp() - interval '1 second'")
    assert trigger(work, keyed()).outcome is TriggerOutcome.CREATED


def test_a_failed_owner_frees_the_key_at_once(work: Lane) -> None:
    owner = trigger(work, keyed())
    work.settle(settlement(work.claim_one(owner.run_id), OutcomeKind.FAILED))
    again = trigger(work, keyed())
    assert again.outcome is TriggerOutcome.CREATED
    assert trigger(work, keyed()).run_id == again.run_id


def test_time_never_frees_the_key_of_an_active_owner(work: Lane) -> None:
    trigger(work, keyed())
    work.connection.execute("UPDATE runlane.idempotency_key SET expires_at = clock_timestamp() - interval '1 second'")
    assert trigger(work, keyed()).outcome is TriggerOutcome.DUPLICATE


def test_a_key_kept_only_while_active_is_free_at_any_end(work: Lane) -> None:
    owner = trigger(work, keyed(ttl=None))
    assert trigger(work, keyed(ttl=None)).outcome is TriggerOutcome.DUPLICATE
    work.succeed(work.claim_one(owner.run_id))
    assert trigger(work, keyed(ttl=None)).outcome is TriggerOutcome.CREATED


def test_a_reset_frees_the_key(work: Lane) -> None:
    trigger(work, keyed())
    assert work.storage.runs.reset_idempotency_key("noop", "key")
    assert not work.storage.runs.reset_idempotency_key("noop", "key")
    assert trigger(work, keyed()).outcome is TriggerOutcome.CREATED


def test_two_callers_at_once_make_one_run(work: Lane, other_storage: PostgresStorage) -> None:
    for place in range(15):
        batches = at_once(
            lambda place=place: work.trigger(keyed(f"k{place}")),
            lambda place=place: other_storage.triggers.trigger_runs([keyed(f"k{place}")], eager=True),
        )
        assert {batch.runs[0].run_id for batch in batches} == {batches[0].runs[0].run_id}
        assert sorted(batch.runs[0].outcome.value for batch in batches) == ["created", "duplicate"]
        assert sum(len(batch.wakeups) for batch in batches) <= 1


def test_two_callers_at_once_take_over_a_freed_key_once(work: Lane, other_storage: PostgresStorage) -> None:
    for _ in range(10):
        owner = trigger(work, keyed())
        work.settle(settlement(work.claim_one(owner.run_id), OutcomeKind.FAILED))
        batches = at_once(lambda: work.trigger(keyed()), lambda: other_storage.triggers.trigger_runs([keyed()], eager=True))
        assert sorted(batch.runs[0].outcome.value for batch in batches) == ["created", "duplicate"]
        work.settle(settlement(work.claim_one(batches[0].runs[0].run_id), OutcomeKind.FAILED))


def test_batches_with_the_same_keys_in_reverse_order_do_not_deadlock(work: Lane, other_storage: PostgresStorage) -> None:
    for turn in range(10):
        runs = [keyed(f"{turn}-{place}") for place in range(20)]
        batches = at_once(
            lambda runs=runs: work.trigger(*runs),
            lambda runs=runs: other_storage.triggers.trigger_runs(runs[::-1], eager=True),
        )
        assert [run.run_id for run in batches[0].runs] == [run.run_id for run in batches[1].runs][::-1]


def test_a_key_twice_in_one_batch_is_one_run(work: Lane) -> None:
    first, second = work.trigger(keyed(), keyed(payload_hash="other")).runs
    assert (second.run_id, second.outcome, second.payload_matches) == (first.run_id, TriggerOutcome.DUPLICATE, False)


def test_a_rolled_back_owner_leaves_the_key_free(work: Lane, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        work.storage.triggers.record_runs(caller, [keyed()])
        caller.rollback()
    assert trigger(work, keyed()).outcome is TriggerOutcome.CREATED


def test_a_key_of_any_text_is_a_key(work: Lane) -> None:
    for key in ('"quoted"', "new\nline", "{}", "ü" * 255, "\\", "'"):
        assert trigger(work, keyed(key)).run_id == trigger(work, keyed(key)).run_id
