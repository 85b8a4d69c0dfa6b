"""What FIFO deliveries ask of storage: a wakeup starts its own run or none, and one that came elsewhere starts nothing."""

from __future__ import annotations

import pytest

from runlane.domain.ids import RunId
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from runlane.ports.stores import ClaimBatch
from tests.postgres.factories import LEASE, Lane, ids, new_run

pytestmark = pytest.mark.postgres


def claim_own(lane: Lane, *run_ids: RunId) -> ClaimBatch:
    return lane.storage.deliveries.claim_runs(run_ids, lease_for=LEASE, worker="w", own_only=True)


def put_back(lane: Lane, queue: str) -> None:
    """Dispatch rows go back into the order, as after an expiry, and nobody has dispatched since."""
    lane.storage.queues.pause(queue, tenant=None, concurrency_key=None, actor=None)
    lane.connection.execute("UPDATE runlane.queue SET paused_at = NULL")


def test_a_wakeup_starts_its_own_run_when_it_is_picked(lane: Lane) -> None:
    lane.queues(Queue("main"))
    run_id = lane.trigger_one("main")
    assert ids(claim_own(lane, run_id).claims) == [run_id]


def test_another_run_that_a_wakeup_picks_is_dispatched_and_not_started(lane: Lane) -> None:
    lane.queues(Queue("main", concurrency_limit=1))
    first, second = ids(lane.trigger(new_run("main"), new_run("main")).runs)
    put_back(lane, "main")
    answer = claim_own(lane, second)
    assert (ids(answer.claims), ids(answer.wakeups)) == ([], [first])
    assert [(one.run_id, one.reason) for one in answer.refusals] == [(second, "at_capacity")]
    assert (lane.status(first), lane.events(first)[-1]) == (Status.QUEUED, "run.dispatched")


def test_a_run_that_has_gone_back_into_the_order_starts_at_its_own_late_wakeup(lane: Lane) -> None:
    lane.queues(Queue("main"))
    run_id = lane.trigger_one("main")
    put_back(lane, "main")
    answer = claim_own(lane, run_id)
    assert (ids(answer.claims), answer.wakeups) == ([run_id], ())


def test_due_timers_are_dispatched_and_not_claimed(lane: Lane) -> None:
    lane.queues(Queue("main"))
    found = ids(lane.trigger(*(new_run("main", delay=LEASE, concurrency_key=str(n % 2)) for n in range(3))).runs)
    for run_id in found[:2]:
        lane.age_timer(run_id)
    answer = lane.storage.deliveries.forward_runs(found)
    assert sorted(ids(answer.wakeups)) == sorted(found[:2])
    assert {(one.queue, one.concurrency_key, one.hint) for one in answer.wakeups} == {("main", "0", False), ("main", "1", False)}
    assert [(one.run_id, one.reason) for one in answer.refusals] == [(found[2], "not_due")]
    assert answer.claims == ()
    assert sorted(ids(lane.claim(*found[:2]).claims)) == sorted(found[:2])


def test_a_run_that_is_dispatched_already_gets_its_wakeup_once_more(lane: Lane) -> None:
    lane.queues(Queue("main"))
    run_id = lane.trigger_one("main", tenant="acme", concurrency_key="k")
    (wakeup,) = lane.storage.deliveries.forward_runs([run_id]).wakeups
    assert (wakeup.run_id, wakeup.queue, wakeup.tenant, wakeup.concurrency_key, wakeup.hint) == (run_id, "main", "acme", "k", False)
    assert lane.events(run_id) == ["run.created", "run.dispatched"]


def test_forwarding_tells_of_ended_leased_and_expired_runs(lane: Lane) -> None:
    lane.queues(Queue("main"))
    done, leased, expired = ids(lane.trigger(*(new_run("main") for _ in range(3))).runs)
    lane.succeed(lane.claim_one(done))
    lane.claim_one(leased)
    lane.claim_one(expired)
    lane.age_lease(expired)
    answer = lane.storage.deliveries.forward_runs([done, leased, expired])
    assert {(one.run_id, one.reason) for one in answer.refusals} == {(done, "terminal"), (leased, "leased")}
    assert [one.run_id for one in answer.expired] == [expired]


def test_a_run_beyond_its_limit_waits_and_is_not_forwarded(lane: Lane) -> None:
    lane.queues(Queue("main", concurrency_limit=1))
    first = lane.trigger_one("main")
    late = lane.trigger_one("main", delay=LEASE)
    lane.age_timer(late)
    answer = lane.storage.deliveries.forward_runs([late])
    assert ([(one.run_id, one.reason) for one in answer.refusals], answer.wakeups) == ([(late, "at_capacity")], ())
    assert ids(lane.succeed(lane.claim_one(first)).wakeups) == [late]


def test_unpublished_wakeups_are_taken_over_in_the_order_of_their_dispatch(lane: Lane) -> None:
    lane.queues(Queue("main", concurrency_limit=1))
    found = ids(lane.trigger(*(new_run("main", concurrency_key=str(n), priority=n) for n in range(9, 0, -1))).runs)
    lane.age_publication(*found)
    sent = ids(lane.storage.maintenance.claim_unpublished(limit=100).wakeups)
    in_order = lane.connection.execute("SELECT run_id::text FROM runlane.dispatch ORDER BY dispatch_seq").fetchall()
    assert sent == [run_id for (run_id,) in in_order]
