"""One active run per task and singleton key, waiting states included."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import Status, TriggerOutcome
from runlane.ports.stores import NewRun
from tests.postgres.factories import Lane, at_once, new_run, settlement

pytestmark = pytest.mark.postgres
HOUR = timedelta(hours=1)


@pytest.fixture(params=[None, 1], ids=["unlimited", "limit1"])
def work(request: pytest.FixtureRequest, lane: Lane) -> Lane:
    lane.queues(Queue("work", concurrency_limit=request.param))
    return lane


def single(key: str = "s", **options: Any) -> NewRun:
    return new_run("work", singleton_key=key, **options)


@pytest.mark.parametrize("state", ["queued", "scheduled", "running", "retrying", "released", "cancellation_requested", "recorded"])
def test_an_active_run_is_returned_in_every_state(work: Lane, state: str) -> None:
    batch = work.trigger(single(delay=HOUR if state == "scheduled" else None), eager=state != "recorded")
    run_id = batch.runs[0].run_id
    if state not in ("queued", "scheduled", "recorded"):
        claim = work.claim_one(run_id)
        if state == "cancellation_requested":
            work.cancel(run_id)
        elif state != "running":
            work.settle(settlement(claim, OutcomeKind.RETRY if state == "retrying" else OutcomeKind.RELEASED, delay=HOUR))
    (again,) = work.trigger(single()).runs
    assert (again.run_id, again.outcome) == (run_id, TriggerOutcome.SINGLETON_ACTIVE)
    assert again.status is work.status(run_id)


@pytest.mark.parametrize("end", [OutcomeKind.SUCCEEDED, OutcomeKind.FAILED])
def test_any_end_makes_room_for_the_next(work: Lane, end: OutcomeKind) -> None:
    run_id = work.trigger_one("work", singleton_key="s")
    work.settle(settlement(work.claim_one(run_id), end))
    assert work.trigger(single()).runs[0].outcome is TriggerOutcome.CREATED


def test_a_cancelled_run_makes_room_too(work: Lane) -> None:
    work.cancel(work.trigger_one("work", singleton_key="s"))
    (next_run,) = work.trigger(single()).runs
    assert next_run.outcome is TriggerOutcome.CREATED
    assert next_run.status is Status.QUEUED


def test_two_callers_at_once_start_one(work: Lane, other_storage: PostgresStorage) -> None:
    for _ in range(12):
        batches = at_once(lambda: work.trigger(single()), lambda: other_storage.triggers.trigger_runs([single()], eager=True))
        assert sorted(batch.runs[0].outcome.value for batch in batches) == ["created", "singleton_active"]
        assert batches[0].runs[0].run_id == batches[1].runs[0].run_id
        work.succeed(work.claim_one(batches[0].runs[0].run_id))


def test_a_singleton_twice_in_one_batch_is_one_run(work: Lane) -> None:
    first, second, other = work.trigger(single(), single(), single("other")).runs
    assert (second.run_id, second.outcome) == (first.run_id, TriggerOutcome.SINGLETON_ACTIVE)
    assert other.outcome is TriggerOutcome.CREATED


def test_an_active_singleton_does_not_take_the_idempotency_key(work: Lane) -> None:
    active = work.trigger_one("work", singleton_key="s")
    (returned,) = work.trigger(single(idempotency_key="i", payload_hash="h")).runs
    assert returned.run_id == active
    (created,) = work.trigger(new_run("work", idempotency_key="i", payload_hash="h")).runs
    assert created.outcome is TriggerOutcome.CREATED


def test_a_batch_names_no_run_that_does_not_exist(work: Lane) -> None:
    """The first item would own the idempotency key but finds its singleton active; the second found the key taken by the first."""
    active = work.trigger_one("work", singleton_key="s")
    runs = work.trigger(single(idempotency_key="i", payload_hash="h"), new_run("work", idempotency_key="i", payload_hash="h")).runs
    assert [run.run_id for run in runs] == [active, active]
