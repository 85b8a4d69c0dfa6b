"""G3: a lease has a token; a worker that lost its lease writes nothing, and the refusal is recorded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from tests.postgres.factories import FAILURE, LEASE, STALE, Lane, at_once, ids, settlement

pytestmark = pytest.mark.postgres


@pytest.fixture(params=[None, 1], ids=["unlimited", "limit1"])
def queue(request: pytest.FixtureRequest, lane: Lane) -> str:
    lane.queues(Queue("work", concurrency_limit=request.param))
    return "work"


def test_a_wakeup_delivered_twice_leases_once(lane: Lane, other_storage: PostgresStorage, queue: str) -> None:
    run_id = lane.trigger_one(queue)
    batches = at_once(
        lambda: lane.claim(run_id),
        lambda: other_storage.deliveries.claim_runs([run_id], lease_for=LEASE, worker="other"),
    )
    assert sum(len(batch.claims) for batch in batches) == 1
    assert lane.events(run_id).count("run.claimed") == 1


def test_a_late_result_is_refused_and_the_refusal_recorded(lane: Lane, queue: str) -> None:
    run_id = lane.trigger_one(queue)
    lost = lane.claim_one(run_id)
    lane.age_lease(run_id)
    lane.settle(settlement(lost, OutcomeKind.LEASE_EXPIRED, delay=timedelta(0)))
    late = lane.succeed(lost)
    assert late.refused == (run_id,)
    assert not late.settled
    assert lane.status(run_id) is Status.RETRYING
    assert lane.events(run_id)[-1] == "run.result_refused"
    again = lane.claim_one(run_id)
    assert again.attempt == 2
    assert lane.succeed(lost).refused == (run_id,)
    assert lane.succeed(again).settled[0].status is Status.SUCCEEDED
    assert lane.succeed(lost).refused == (run_id,)
    assert lane.status(run_id) is Status.SUCCEEDED
    assert lane.events(run_id).count("run.result_refused") == 3


def test_a_refusal_reaches_the_history_wherever_its_run_stands(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    first, second = lane.trigger_one("work"), lane.trigger_one("work")
    claim = lane.claim_one(first)
    stale = claim._replace(run_id=second, token=STALE)
    for place in ("waiting", "dispatch", "lease", "outcome"):
        assert lane.value(f"SELECT count(*) FROM runlane.{place} WHERE run_id = %s", second) == 1
        assert lane.settle(settlement(stale)).refused == (second,)
        assert lane.events(second)[-1] == "run.result_refused"
        if place == "waiting":
            lane.succeed(claim)
        elif place == "dispatch":
            claim = lane.claim_one(second)
        elif place == "lease":
            lane.succeed(claim)


def test_a_refusal_written_while_its_run_is_handed_the_slot_is_not_lost(lane: Lane, storage: PostgresStorage, dsn: str) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    first, second = lane.trigger_one("work"), lane.trigger_one("work")
    held = lane.claim_one(first)
    with psycopg.connect(dsn) as other, ThreadPoolExecutor() as threads:
        other.execute("SELECT runlane.record_refusal_v1(%s, 'succeeded', clock_timestamp())", [second])
        turn = threads.submit(storage.deliveries.settle_and_claim, [settlement(held)], ["work"], limit=1, lease_for=LEASE, worker="w")
        lane.await_waiters(1)
        other.commit()
        (claim,) = turn.result()[1].claims
    assert claim.run_id == second
    assert lane.events(second)[-3:] == ["run.result_refused", "run.dispatched", "run.claimed"]


def test_one_stale_settlement_does_not_spoil_its_batch(lane: Lane, queue: str) -> None:
    good = lane.claim_one(lane.trigger_one(queue, concurrency_key="a"))
    stolen = lane.claim_one(lane.trigger_one(queue, concurrency_key="b"))
    batch = lane.succeed(good, stolen._replace(token=STALE))
    assert [settled.run_id for settled in batch.settled] == [good.run_id]
    assert batch.refused == (stolen.run_id,)
    lane.succeed(stolen)


def test_a_result_for_an_unknown_run_is_refused(lane: Lane, queue: str) -> None:
    claim = lane.claim_one(lane.trigger_one(queue))
    unknown = claim._replace(run_id=STALE)
    assert lane.succeed(unknown).refused == (STALE,)
    lane.succeed(claim)


def test_two_settlements_of_one_lease_end_it_once(lane: Lane, other_storage: PostgresStorage, queue: str) -> None:
    claim = lane.claim_one(lane.trigger_one(queue))
    batches = at_once(lambda: lane.succeed(claim), lambda: other_storage.deliveries.settle_runs([settlement(claim)]))
    assert sum(len(batch.settled) for batch in batches) == 1
    assert sum(len(batch.refused) for batch in batches) == 1


def test_a_heartbeat_extends_even_after_expiry_and_tells_of_cancellations(lane: Lane, queue: str) -> None:
    claim = lane.claim_one(lane.trigger_one(queue))
    lane.age_lease(claim.run_id)
    (state,) = lane.storage.deliveries.heartbeat({claim.run_id: claim.token}, lease_for=LEASE)
    assert not state.cancellation_requested
    assert lane.storage.maintenance.expired_leases(limit=10) == ()
    lane.cancel(claim.run_id)
    assert lane.storage.deliveries.read_leases({claim.run_id: claim.token})[0].cancellation_requested
    assert lane.storage.deliveries.heartbeat({claim.run_id: claim.token}, lease_for=LEASE)[0].cancellation_requested
    assert lane.storage.deliveries.heartbeat({claim.run_id: STALE}, lease_for=LEASE) == ()
    lane.succeed(claim)


def test_a_lease_that_was_extended_is_not_recovered(lane: Lane, queue: str) -> None:
    claim = lane.claim_one(lane.trigger_one(queue))
    lane.age_lease(claim.run_id)
    (expired,) = lane.storage.maintenance.expired_leases(limit=10)
    lane.storage.deliveries.heartbeat({claim.run_id: claim.token}, lease_for=LEASE)
    recovery = settlement(claim, OutcomeKind.LEASE_EXPIRED)._replace(token=expired.token)
    assert lane.settle(recovery).refused == (claim.run_id,)
    assert lane.events(claim.run_id)[-1] == "run.claimed"
    lane.succeed(claim)


def test_an_expired_lease_is_recovered_once(lane: Lane, other_storage: PostgresStorage, queue: str) -> None:
    claim = lane.claim_one(lane.trigger_one(queue))
    lane.age_lease(claim.run_id)
    recovery = settlement(claim, OutcomeKind.LEASE_EXPIRED, delay=timedelta(0))
    at_once(lambda: lane.settle(recovery), lambda: other_storage.deliveries.settle_runs([recovery]))
    assert lane.events(claim.run_id).count("run.lease_expired") == 1
    assert lane.events(claim.run_id).count("run.result_refused") == 0


def test_a_claim_that_meets_an_expired_lease_names_it_for_recovery(lane: Lane, queue: str) -> None:
    claim = lane.claim_one(lane.trigger_one(queue))
    assert [refusal.reason for refusal in lane.claim(claim.run_id).refusals] == ["leased"]
    lane.age_lease(claim.run_id)
    (expired,) = lane.claim(claim.run_id).expired
    assert (expired.run_id, expired.token, expired.attempt) == (claim.run_id, claim.token, 1)
    assert lane.storage.maintenance.expired_leases(limit=10) == (expired,)


def test_the_last_lost_attempt_fails_the_run(lane: Lane, queue: str) -> None:
    claim = lane.claim_one(lane.trigger_one(queue, max_attempts=1))
    lane.age_lease(claim.run_id)
    assert lane.settle(settlement(claim, OutcomeKind.LEASE_EXPIRED, final=True)).settled[0].status is Status.FAILED
    record = lane.storage.runs.get_run(claim.run_id)
    assert record is not None
    assert (record.failures, record.failure) == (1, FAILURE)


def test_the_wakeup_of_a_recovered_run_goes_out_with_its_recovery(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    claim = lane.claim_one(lane.trigger_one("work"))
    lane.age_lease(claim.run_id)
    recovered = lane.settle(settlement(claim, OutcomeKind.LEASE_EXPIRED, delay=timedelta(0)))
    assert ids(recovered.wakeups) == [claim.run_id]
