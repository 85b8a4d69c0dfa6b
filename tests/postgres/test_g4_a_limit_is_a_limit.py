"""G4: no transaction raises the occupancy of a partition or a queue above the limit in force."""

from __future__ import annotations

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.queue import Queue
from tests.postgres.factories import LEASE, Lane, at_once, ids, new_run, settlement
from tests.postgres.invariants import highest_occupancy, queue_slots
from tests.postgres.workers import contend, run_processes

pytestmark = pytest.mark.postgres
PROCESSES, CLAIMS_EACH = 8, 25


def test_eight_processes_never_exceed_a_limit(lane: Lane, dsn: str) -> None:
    """200 claims for each of limits 1, 2 and 7, with a total limit and without; checked from committed slot events."""
    bounded = {f"limit{limit}of{total}": (limit, total) for limit in (1, 2, 7) for total in (None, 5)}
    lane.queues(*(Queue(name, concurrency_limit=limit, total_limit=total) for name, (limit, total) in bounded.items()))
    run_processes(contend, [(dsn, list(bounded), 3, CLAIMS_EACH, seed) for seed in range(PROCESSES)])
    for name, (limit, total) in bounded.items():
        assert lane.value("SELECT count(*) FROM runlane.event e JOIN runlane.run r USING (run_id) JOIN runlane.queue q USING (queue_id)"
                          " WHERE q.name = %s AND e.type = 'run.claimed'", name) >= 100  # fmt: skip
        assert 1 <= highest_occupancy(lane.connection, name) <= limit
        slots = queue_slots(lane.connection, name)
        assert [sequence for sequence, _ in slots] == list(range(1, len(slots) + 1))
        assert bool(slots) is (total is not None)
        assert max((occupied for _, occupied in slots), default=0) <= (total or 0)


@pytest.mark.parametrize("limit", [1, 3])
def test_what_is_triggered_beyond_the_limit_waits(lane: Lane, limit: int) -> None:
    lane.queues(Queue("work", concurrency_limit=limit))
    batch = lane.trigger(*(new_run("work", concurrency_key="k") for _ in range(10)))
    assert len(batch.wakeups) == limit
    assert lane.storage.queues.stats(["work"])[0].blocked == {"concurrency_limit": 1}


def test_a_total_limit_holds_over_all_partitions(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=2, total_limit=3))
    batch = lane.trigger(*(new_run("work", concurrency_key=f"k{place % 4}") for place in range(12)))
    assert len(batch.wakeups) == 3
    assert len(lane.drain(batch.wakeups)) == 12
    assert [occupied for _, occupied in queue_slots(lane.connection, "work")][:3] == [1, 2, 3]


def test_a_claim_keeps_the_slot_that_its_dispatch_took(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    run_id = lane.trigger_one("work")
    other = lane.trigger_one("work")
    claim = lane.claim_one(run_id)
    assert lane.value("SELECT occupied FROM runlane.partition") == 1
    assert [refusal.reason for refusal in lane.claim(other).refusals] == ["at_capacity"]
    assert ids(lane.succeed(claim).wakeups) == [other]


def test_an_expired_lease_still_holds_its_slot_until_it_is_recovered(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    claim = lane.claim_one(lane.trigger_one("work"))
    other = lane.trigger_one("work")
    lane.age_lease(claim.run_id)
    assert lane.storage.maintenance.dispatch_queues(limit=10).wakeups == ()
    assert [refusal.reason for refusal in lane.claim(other).refusals] == ["at_capacity"]
    assert ids(lane.succeed(claim).wakeups) == [other]


def test_a_key_and_no_key_are_partitions_of_their_own(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    runs = [
        new_run("work"),
        new_run("work", concurrency_key="a"),
        new_run("work", tenant="a"),
        new_run("work", tenant="a", concurrency_key="a"),
    ]
    assert len(lane.trigger(*runs, *runs).wakeups) == 4


def test_two_ticks_that_expire_the_same_rows_do_not_overfill(
    lane: Lane, other_storage: PostgresStorage, third_storage: PostgresStorage
) -> None:
    lane.queues(Queue("work", concurrency_limit=2))
    for _ in range(10):
        lane.trigger(*(new_run("work", concurrency_key=f"k{place % 5}") for place in range(15)))
        lane.age_dispatch(*(row for (row,) in lane.connection.execute("SELECT run_id FROM runlane.dispatch")))
        leases = lane.storage.deliveries.claim_oldest(["work"], limit=3, lease_for=LEASE, worker="w").claims
        at_once(
            lambda: lane.storage.maintenance.expire_dispatches(limit=100),
            lambda: other_storage.maintenance.expire_dispatches(limit=100),
            lambda leases=leases: third_storage.deliveries.settle_runs([settlement(claim) for claim in leases]),
        )
    assert highest_occupancy(lane.connection, "work") == 2
