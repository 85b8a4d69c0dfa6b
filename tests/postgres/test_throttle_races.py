"""A throttle under races: the bound is read from the histories at the end of every test, by the invariants."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from random import Random

import psycopg
import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.queue import Queue, Throttle
from runlane.ports.stores import ClaimBatch
from tests.postgres.factories import LEASE, Lane, at_once, ids, new_run
from tests.postgres.workers import contend, run_processes

pytestmark = pytest.mark.postgres
ONE_A_MINUTE = Throttle(1, "1m")
AGE = (
    "UPDATE runlane.partition SET throttle_clock = throttle_clock - interval '1 day', ready_at = ready_at - interval '1 day'",
    "UPDATE runlane.dispatch SET start_at = start_at - interval '1 day'",
)


def age(lane: Lane) -> None:
    """Every turn that is reserved has passed, long ago."""
    for statement in AGE:
        lane.connection.execute(statement.encode())


def claims(batches: list[ClaimBatch]) -> int:
    return sum(len(batch.claims) for batch in batches)


def test_two_dispatches_at_once_reserve_each_turn_once(lane: Lane, other_storage: PostgresStorage) -> None:
    lane.queues(Queue("work", throttle=Throttle(20, "1s")))
    for _ in range(5):
        lane.trigger(*[new_run("work")] * 30, eager=False)
        at_once(
            lambda: lane.storage.triggers.dispatch(["work"]), lambda: other_storage.triggers.trigger_runs([new_run("work")] * 9, eager=True)
        )
        rows = lane.connection.execute("SELECT start_at FROM runlane.dispatch ORDER BY 1").fetchall()
        step = timedelta(seconds=1.025) / 20
        assert all(later - earlier >= step for (earlier,), (later,) in pairwise(rows))


def test_late_turns_that_three_claim_at_once_start_no_more_than_the_burst(
    lane: Lane, other_storage: PostgresStorage, third_storage: PostgresStorage
) -> None:
    for queue in ("a", "b", "c", "d"):
        lane.queues(Queue(queue, throttle=Throttle(20, "1m", burst=2)))
        lane.connection.execute(b"UPDATE runlane.queue SET throttle_ahead = '1 hour'")
        found = ids(lane.trigger(*[new_run(queue)] * 10).wakeups)
        age(lane)
        moves: list[Callable[[], ClaimBatch]] = [
            lambda found=found: other_storage.deliveries.claim_runs(found, lease_for=LEASE, worker="a"),
            lambda found=found: lane.claim(*found),
            lambda queue=queue: third_storage.deliveries.claim_oldest([queue], limit=10, lease_for=LEASE, worker="b"),
        ]
        assert claims(at_once(*moves)) == 3


def test_a_late_claim_and_a_dispatch_of_the_same_partition_agree(
    lane: Lane, other_storage: PostgresStorage, third_storage: PostgresStorage
) -> None:
    lane.queues(Queue("work", throttle=Throttle(20, "1m", burst=1)))
    for place in range(4):
        new = [new_run("work", concurrency_key=f"k{place}")] * 4
        found = [run.run_id for run in lane.trigger(*new).runs]
        age(lane)
        at_once(
            lambda new=new: other_storage.triggers.trigger_runs(new, eager=True),
            lambda found=found: lane.claim(*found),
            lambda: third_storage.maintenance.expire_dispatches(limit=10),
        )
        lane.drain(lane.storage.triggers.dispatch(["work"]))


@pytest.mark.parametrize("limited", [{}, {"concurrency_limit": 2}, {"total_limit": 3}], ids=["alone", "limit2", "total3"])
def test_a_policy_that_changes_while_turns_are_reserved_holds_from_then_on(
    lane: Lane, other_storage: PostgresStorage, limited: dict[str, int]
) -> None:
    for _ in range(4):
        lane.queues(Queue("work", throttle=Throttle(10, "1s"), **limited))  # type: ignore[arg-type]
        lane.trigger(*[new_run("work")] * 4)
        found = [run_id for (run_id,) in lane.connection.execute("SELECT run_id::text FROM runlane.dispatch ORDER BY 1").fetchall()]
        slow = Queue("work", throttle=ONE_A_MINUTE, **limited)  # type: ignore[arg-type]
        at_once(
            lambda slow=slow: lane.queues(slow),
            lambda found=found: other_storage.deliveries.claim_runs(found, lease_for=LEASE, worker="o"),
        )
        assert claims([lane.claim(*found), lane.claim(*found)]) <= 1


def test_a_claim_that_waits_while_a_throttle_comes_into_force_is_told_to_come_again(lane: Lane, dsn: str) -> None:
    lane.queues(Queue("work"))
    found = ids(lane.trigger(*[new_run("work", concurrency_key="k")] * 3).wakeups)
    with closing(psycopg.connect(dsn)) as policy, ThreadPoolExecutor(1) as pool:
        policy.execute(
            "SELECT * FROM runlane.write_policy_v1('work', NULL, NULL, '5 min', 1000, 10, '1 min', 0, '{\"throttle\":"
            ' {"limit": 10, "period": "1 min", "burst": 0}}\', \'test\')'
        )
        claim = pool.submit(lane.claim, *found)
        lane.await_waiters(1)
        policy.commit()
        batch = claim.result()
    assert batch.claims == ()
    assert [(refusal.reason, refusal.due_in) for refusal in batch.refusals] == [("throttled", timedelta(milliseconds=20))] * 3
    assert lane.value("SELECT reserved FROM runlane.partition") == 3
    assert claims([lane.claim(*found)]) == 1


def test_a_claim_that_dies_before_its_commit_has_started_nothing(lane: Lane, dsn: str) -> None:
    lane.queues(Queue("work", throttle=ONE_A_MINUTE))
    run_id = lane.trigger_one("work")
    clock = lane.value("SELECT throttle_clock FROM runlane.partition")
    with closing(psycopg.connect(dsn)) as dying:
        rows = dying.execute("SELECT kind FROM runlane.claim_runs_v1(ARRAY[%s::uuid], '1m', 'w')", (run_id,)).fetchall()
        assert ("claim",) in rows
    assert lane.value("SELECT throttle_clock FROM runlane.partition") == clock
    lane.age_dispatch(run_id)
    lane.storage.maintenance.expire_dispatches(limit=10)
    assert ids(lane.claim(run_id).claims) == [run_id]


def test_processes_that_contend_start_no_more_than_permitted(lane: Lane, dsn: str) -> None:
    queues = {
        "fast": Queue("fast", throttle=Throttle(50, "200ms", burst=5)),
        "limited": Queue("limited", throttle=Throttle(50, "200ms"), concurrency_limit=2),
        "total": Queue("total", throttle=Throttle(50, "200ms", burst=20), concurrency_limit=3, total_limit=5, dispatch_window=10),
    }
    lane.queues(*queues.values())
    run_processes(contend, [(dsn, list(queues), 2, 12, seed) for seed in range(3)])
    for name in queues:
        assert lane.value("SELECT count(*) FROM runlane.event e JOIN runlane.run r USING (run_id) JOIN runlane.queue q USING (queue_id)"
                          " WHERE q.name = %s AND e.type = 'run.claimed'", name) >= 3  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_in_whatever_order_no_period_sees_more(lane: Lane, seed: int) -> None:
    """Dispatches, claims in time and late, returns, expiries and pauses, at random; a period passes every few moves."""
    rng = Random(seed)
    lane.queues(Queue("work", throttle=Throttle(3, "40ms", burst=1), concurrency_limit=rng.choice([None, 5])))
    known = [lane.trigger_one("work")]

    def trigger() -> None:
        new = [new_run("work", concurrency_key=rng.choice("ab"), priority=rng.choice([0, 60])) for _ in range(rng.randint(1, 5))]
        known.extend(run.run_id for run in lane.trigger(*new).runs)

    def some() -> list[str]:
        return rng.sample(known, min(len(known), 6))

    def claim() -> None:
        lane.succeed(*lane.claim(*some()).claims)  # type: ignore[arg-type]

    def claim_oldest() -> None:
        lane.succeed(*lane.storage.deliveries.claim_oldest(["work"], limit=4, lease_for=LEASE, worker="w").claims)

    def expire() -> None:
        lane.age_dispatch(*some())  # type: ignore[arg-type]
        lane.storage.maintenance.expire_dispatches(limit=10)

    def pause() -> None:
        lane.storage.queues.pause("work", tenant=None, concurrency_key=None, actor=None)
        lane.storage.queues.resume("work", tenant=None, concurrency_key=None, actor=None)

    moves = [trigger] * 3 + [claim] * 6 + [claim_oldest] * 3 + [expire, pause, lambda: lane.cancel(rng.choice(known))]
    moves += [lambda: lane.reschedule(rng.choice(known), timedelta(0)), lambda: lane.storage.maintenance.dispatch_queues(limit=10)]
    for move in rng.choices(moves, k=100):
        move()
    assert lane.value("SELECT count(*) FROM runlane.event WHERE type = 'run.claimed'") >= 5
