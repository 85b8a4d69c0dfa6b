"""G2: a wakeup asks for a dispatch; what may run is read from Postgres."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from tests.postgres.factories import LEASE, STALE, Lane, at_once, ids, new_run, settlement

pytestmark = pytest.mark.postgres
HOUR = timedelta(hours=1)


@pytest.fixture(params=[None, 1], ids=["unlimited", "limit1"])
def queue(request: pytest.FixtureRequest, lane: Lane) -> str:
    lane.queues(Queue("work", concurrency_limit=request.param))
    return "work"


def refusals(lane: Lane, *run_ids: RunId) -> list[str]:
    batch = lane.claim(*run_ids)
    assert batch.claims == ()
    return [refusal.reason for refusal in batch.refusals]


def test_a_wakeup_for_nothing_is_refused(lane: Lane, queue: str) -> None:
    assert refusals(lane, RunId(STALE)) == ["not_found"]


def test_a_wakeup_for_an_ended_run_is_refused(lane: Lane, queue: str) -> None:
    claim = lane.claim_one(lane.trigger_one(queue))
    lane.succeed(claim)
    assert refusals(lane, claim.run_id) == ["terminal"]


def test_a_wakeup_for_a_leased_run_is_refused(lane: Lane, queue: str) -> None:
    claim = lane.claim_one(lane.trigger_one(queue))
    assert refusals(lane, claim.run_id) == ["leased"]


@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.RELEASED])
def test_a_late_wakeup_does_not_shorten_a_wait(lane: Lane, queue: str, kind: OutcomeKind) -> None:
    claim = lane.claim_one(lane.trigger_one(queue))
    lane.settle(settlement(claim, kind, delay=HOUR))
    (refusal,) = lane.claim(claim.run_id).refusals
    assert refusal.reason == "not_due"
    assert refusal.due_in is not None
    assert timedelta(minutes=59) < refusal.due_in <= HOUR


def test_a_wakeup_named_twice_in_a_batch_leases_once(lane: Lane, queue: str) -> None:
    run_id = lane.trigger_one(queue)
    assert ids(lane.claim(run_id, run_id).claims) == [run_id]


def test_a_batch_of_everything_answers_for_each(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    ended = lane.claim_one(lane.trigger_one("work", concurrency_key="ended"))
    lane.succeed(ended)
    leased = lane.claim_one(lane.trigger_one("work", concurrency_key="k"))
    blocked = lane.trigger_one("work", concurrency_key="k")
    later = lane.trigger_one("work", concurrency_key="k", delay=HOUR)
    ready = lane.trigger_one("work", concurrency_key="other")
    batch = lane.claim(ended.run_id, leased.run_id, blocked, later, ready, RunId(STALE))
    assert ids(batch.claims) == [ready]
    assert {refusal.run_id: refusal.reason for refusal in batch.refusals} == {
        ended.run_id: "terminal",
        leased.run_id: "leased",
        blocked: "at_capacity",
        later: "not_due",
        RunId(STALE): "not_found",
    }


def test_a_wakeup_without_a_dispatch_row_runs_what_the_fair_order_picks(lane: Lane) -> None:
    """The wakeup of a due timer brings its run into the order; an older run of the partition goes first."""
    lane.queues(Queue("work", concurrency_limit=1))
    holder = lane.claim_one(lane.trigger_one("work"))
    timer = lane.trigger_one("work", delay=HOUR)
    lane.settle(settlement(holder, OutcomeKind.RELEASED, delay=HOUR))
    lane.age_timer(holder.run_id)
    lane.connection.execute("UPDATE runlane.timer SET due_at = due_at - interval '1 minute' WHERE run_id = %s", (holder.run_id,))
    lane.age_timer(timer)
    batch = lane.claim(timer, holder.run_id)
    assert len(batch.claims) == 1
    assert [refusal.reason for refusal in batch.refusals] == ["at_capacity"]
    assert ids(batch.claims) == [holder.run_id]
    assert ids(lane.succeed(*batch.claims).wakeups) == [timer]


def test_a_refusal_for_capacity_leaves_the_run_in_the_order(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    holder = lane.claim_one(lane.trigger_one("work"))
    timer = lane.trigger_one("work", delay=HOUR)
    lane.age_timer(timer)
    assert refusals(lane, timer) == ["at_capacity"]
    assert ids(lane.succeed(holder).wakeups) == [timer]


def test_a_wakeup_of_a_paused_queue_is_refused_and_its_run_waits(lane: Lane, queue: str) -> None:
    run_id = lane.trigger_one(queue)
    lane.storage.queues.pause(queue, tenant=None, concurrency_key=None, actor=None)
    assert refusals(lane, run_id) == ["paused"]
    assert ids(lane.storage.queues.resume(queue, tenant=None, concurrency_key=None, actor=None)) == [run_id]


def test_a_wakeup_for_a_recorded_run_folds_it(lane: Lane, queue: str) -> None:
    (run,) = lane.trigger(new_run(queue), eager=False).runs
    assert ids(lane.claim(run.run_id).claims) == [run.run_id]


def test_a_due_timer_woken_twice_at_once_runs_once(lane: Lane, other_storage: PostgresStorage, queue: str) -> None:
    for _ in range(10):
        run_id = lane.trigger_one(queue, delay=HOUR)
        lane.age_timer(run_id)
        batches = at_once(
            lambda r=run_id: lane.claim(r), lambda r=run_id: other_storage.deliveries.claim_runs([r], lease_for=LEASE, worker="o")
        )
        (claim,) = [claim for batch in batches for claim in batch.claims]
        lane.succeed(claim)


def test_the_oldest_dispatch_rows_are_taken_inline_and_their_wakeups_find_them_gone(lane: Lane) -> None:
    lane.queues(Queue("work"), Queue("other"))
    first, second, third = (lane.trigger_one("work") for _ in range(3))
    lane.trigger_one("other")
    taken = lane.storage.deliveries.claim_oldest(["work"], limit=2, lease_for=LEASE, worker="w").claims
    assert sorted(ids(taken)) == [first, second]
    assert refusals(lane, first) == ["leased"]
    lane.succeed(*taken)
    assert refusals(lane, second) == ["terminal"]
    assert ids(lane.claim(third).claims) == [third]


def test_settling_and_claiming_at_once_equals_one_after_the_other(lane: Lane, queue: str) -> None:
    runs = ids_in_order(lane, queue, 4)
    (claim,) = lane.storage.deliveries.claim_oldest([queue], limit=1, lease_for=LEASE, worker="w").claims
    done = [claim.run_id]
    while True:
        ended, claimed = lane.storage.deliveries.settle_and_claim([settlement(claim)], [queue], limit=1, lease_for=LEASE, worker="w")
        assert [settled.run_id for settled in ended.settled] == [claim.run_id]
        if not claimed.claims:
            break
        (claim,) = claimed.claims
        done.append(claim.run_id)
    assert done == runs
    for run_id in runs:
        assert lane.events(run_id) == ["run.created", "run.dispatched", "run.claimed", "run.succeeded"]


def ids_in_order(lane: Lane, queue: str, count: int) -> list[RunId]:
    return [lane.trigger_one(queue, concurrency_key="k") for _ in range(count)]
