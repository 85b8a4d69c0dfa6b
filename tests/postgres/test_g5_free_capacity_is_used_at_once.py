"""G5: the transaction that frees capacity gives it to whom the fair order picks. No test here ticks, but for what only a tick frees."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.ports.stores import ClaimedRun, Wakeup
from tests.postgres.factories import LEASE, Lane, at_once, ids, new_run, settlement

pytestmark = pytest.mark.postgres
ZERO, HOUR = timedelta(0), timedelta(hours=1)


def _settle(kind: OutcomeKind, **fields: object) -> Callable[[Lane, ClaimedRun], tuple[Wakeup, ...]]:
    return lambda lane, claim: tuple(wakeup for wakeup in lane.settle(settlement(claim, kind, **fields)).wakeups if not wakeup.hint)


def _recover(lane: Lane, claim: ClaimedRun) -> tuple[Wakeup, ...]:
    lane.age_lease(claim.run_id)
    return _settle(OutcomeKind.LEASE_EXPIRED, delay=HOUR)(lane, claim)


def _settle_and_claim(lane: Lane, claim: ClaimedRun) -> tuple[ClaimedRun, ...]:
    return lane.storage.deliveries.settle_and_claim([settlement(claim)], [claim.queue], limit=1, lease_for=LEASE, worker="w")[1].claims


FREEING = {
    "success": _settle(OutcomeKind.SUCCEEDED),
    "failure": _settle(OutcomeKind.FAILED),
    "retry": _settle(OutcomeKind.RETRY, delay=HOUR),
    "release": _settle(OutcomeKind.RELEASED, delay=HOUR),
    "hand-back": _settle(OutcomeKind.HANDED_BACK, delay=HOUR),
    "recovery": _recover,
    "success with the next claim": _settle_and_claim,
}
QUEUES = {
    "limit": (Queue("work", concurrency_limit=1), "same"),
    "total": (Queue("work", total_limit=1), "other"),
    "both": (Queue("work", concurrency_limit=1, total_limit=1), "other"),
}


@pytest.mark.parametrize("bound", QUEUES)
@pytest.mark.parametrize("way", FREEING)
def test_a_slot_is_handed_over_by_the_transaction_that_frees_it(lane: Lane, bound: str, way: str) -> None:
    policy, key = QUEUES[bound]
    lane.queues(policy)
    claim = lane.claim_one(lane.trigger_one("work", concurrency_key="same"))
    next_run = lane.trigger_one("work", concurrency_key=key)
    assert ids(FREEING[way](lane, claim)) == [next_run]


@pytest.mark.parametrize("bound", [*QUEUES, "window"])
def test_cancelling_a_dispatched_run_hands_its_place_over(lane: Lane, bound: str) -> None:
    policy, key = {**QUEUES, "window": (Queue("work", dispatch_window=1), "other")}[bound]
    lane.queues(policy)
    first = lane.trigger_one("work", concurrency_key="same")
    next_run = lane.trigger_one("work", concurrency_key=key)
    assert ids(lane.cancel(first)[1]) == [next_run]


@pytest.mark.parametrize("bound", QUEUES)
def test_an_expired_dispatch_hands_its_slot_to_whom_the_order_picks(lane: Lane, bound: str) -> None:
    policy, key = QUEUES[bound]
    lane.queues(policy)
    first = lane.trigger_one("work", concurrency_key="same")
    lane.trigger_one("work", concurrency_key=key)
    lane.age_dispatch(first)
    woken = ids(lane.storage.maintenance.expire_dispatches(limit=10).wakeups)
    assert len(woken) == 1
    assert woken == [first] if key == "same" else woken


def test_a_raised_limit_is_used_by_the_transaction_that_raises_it(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    batch = lane.trigger(*[new_run("work")] * 5)
    woken = lane.queues(Queue("work", concurrency_limit=3))
    assert ids(woken) == [run.run_id for run in batch.runs[1:3]]


def test_a_raised_total_limit_is_used_too(lane: Lane) -> None:
    lane.queues(Queue("work", total_limit=1))
    lane.trigger(*(new_run("work", concurrency_key=f"k{place}") for place in range(5)))
    assert len(lane.queues(Queue("work", total_limit=3))) == 2


def test_a_lifted_limit_lets_everything_go(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    lane.trigger(*[new_run("work")] * 5)
    assert len(lane.queues(Queue("work"))) == 4


def test_a_resumed_queue_dispatches_in_the_transaction_that_resumes_it(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=2))
    batch = lane.trigger(*[new_run("work")] * 5)
    assert lane.storage.queues.pause("work", tenant=None, concurrency_key=None, actor=None) == (2, ())
    assert lane.trigger(new_run("work")).wakeups == ()
    woken = lane.storage.queues.resume("work", tenant=None, concurrency_key=None, actor=None)
    assert ids(woken) == [run.run_id for run in batch.runs[:2]]


def test_a_pause_gives_the_room_it_frees_to_others(lane: Lane) -> None:
    lane.queues(Queue("work", total_limit=2))
    lane.trigger(*[new_run("work", concurrency_key="paused")] * 3)
    others = lane.trigger(*[new_run("work", concurrency_key="other")] * 3)
    given_back, woken = lane.storage.queues.pause("work", tenant=None, concurrency_key="paused", actor=None)
    assert given_back == 2
    assert ids(woken) == [run.run_id for run in others.runs[:2]]


def test_one_settlement_of_many_frees_for_many(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    first = lane.trigger(*(new_run("work", concurrency_key=f"k{place}") for place in range(10)))
    second = lane.trigger(*(new_run("work", concurrency_key=f"k{place}") for place in range(10)))
    assert second.wakeups == ()
    claims = lane.claim(*ids(first.wakeups)).claims
    assert sorted(ids(lane.succeed(*claims).wakeups)) == sorted(run.run_id for run in second.runs)


def test_a_claim_opens_the_window_for_those_who_wait_for_it(lane: Lane) -> None:
    lane.queues(Queue("work", dispatch_window=10))
    first = lane.trigger(*(new_run("work", concurrency_key=f"k{place}") for place in range(30)))
    assert len(first.wakeups) == 10
    assert first.starved_queues == ("work",)
    claimed = lane.claim(*ids(first.wakeups))
    assert len(claimed.wakeups) == 10


def test_a_window_of_one_never_falls_asleep(lane: Lane) -> None:
    lane.queues(Queue("work", dispatch_window=1))
    runs = [lane.trigger(new_run("work", concurrency_key=f"k{place}")) for place in range(10)]
    assert len(lane.drain([wakeup for batch in runs for wakeup in batch.wakeups])) == 10


def test_a_settle_takes_along_what_joined_callers_recorded(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1), Queue("free"))
    for queue in ("work", "free"):
        claim = lane.claim_one(lane.trigger_one(queue))
        (recorded,) = lane.trigger(new_run(queue), eager=False).runs
        assert ids(lane.succeed(claim).wakeups) == [recorded.run_id]


def test_settling_against_triggering_leaves_no_partition_asleep(lane: Lane, other_storage: PostgresStorage) -> None:
    """The lost wakeup in its smallest form: a slot is freed while a run arrives for it."""
    lane.queues(Queue("work", concurrency_limit=1))
    claim = lane.claim_one(lane.trigger_one("work"))
    for _ in range(50):
        settled, triggered = at_once(
            lambda claim=claim: lane.succeed(claim),
            lambda: other_storage.triggers.trigger_runs([new_run("work")], eager=True),
        )
        (woken,) = [*settled.wakeups, *triggered.wakeups]
        claim = lane.claim_one(woken.run_id)


def test_two_settlements_of_a_total_limit_free_twice(lane: Lane, other_storage: PostgresStorage) -> None:
    lane.queues(Queue("work", total_limit=2))
    batch = lane.trigger(*(new_run("work", tenant=f"t{place % 3}", concurrency_key=f"k{place}") for place in range(40)))
    claims = [lane.claim_one(run_id) for run_id in ids(batch.wakeups)]
    for _ in range(15):
        found = at_once(
            lambda claims=claims: lane.succeed(claims[0]).wakeups,
            lambda claims=claims: other_storage.deliveries.settle_runs([settlement(claims[1])]).wakeups,
        )
        claims = [lane.claim_one(run_id) for wakeups in found for run_id in ids(wakeups)]
        assert len(claims) == 2
