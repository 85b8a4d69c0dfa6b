"""A settlement whose first try was committed, and only the answer lost, finds its own work when it is tried again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from runlane.ports.stores import ClaimedRun
from tests.postgres.factories import LEASE, Lane, new_run, settlement

pytestmark = pytest.mark.postgres
HOUR = timedelta(hours=1)
ENDS = {
    OutcomeKind.SUCCEEDED: Status.SUCCEEDED,
    OutcomeKind.FAILED: Status.FAILED,
    OutcomeKind.RETRY: Status.RETRYING,
    OutcomeKind.RELEASED: Status.RELEASED,
    OutcomeKind.HANDED_BACK: Status.QUEUED,
}


@pytest.fixture(params=[None, 1], ids=["unlimited", "limit1"])
def work(request: pytest.FixtureRequest, lane: Lane) -> Lane:
    lane.queues(Queue("work", concurrency_limit=request.param))
    return lane


def end(claim: ClaimedRun, kind: OutcomeKind) -> Settlement:
    return settlement(claim, kind, delay=HOUR)._replace(attempt=claim.attempt)


def again(first: Settlement) -> Settlement:
    return first._replace(tried_before=True)


@pytest.mark.parametrize("kind", ENDS)
def test_the_second_try_of_what_was_committed_is_settled_and_leaves_no_line(work: Lane, kind: OutcomeKind) -> None:
    first = end(work.claim_one(work.trigger_one("work")), kind)
    work.settle(first)
    history = work.events(first.run_id)
    answers = [
        work.settle(again(first)),
        work.storage.deliveries.settle_and_claim([again(first)], ["work"], limit=1, lease_for=LEASE, worker="w")[0],
    ]
    assert [[(one.run_id, one.status) for one in answer.settled] for answer in answers] == [[(first.run_id, ENDS[kind])]] * 2
    assert [answer.refused for answer in answers] == [(), ()]
    assert work.events(first.run_id) == history


@pytest.mark.parametrize("kind", ENDS)
def test_so_is_one_that_a_cancellation_ended(work: Lane, kind: OutcomeKind) -> None:
    first = end(work.claim_one(work.trigger_one("work")), kind)
    work.cancel(first.run_id)
    work.settle(first)
    assert [one.status for one in work.settle(again(first)).settled] == [work.status(first.run_id)]
    assert "run.result_refused" not in work.events(first.run_id)


def test_and_one_whose_run_has_gone_on_since(work: Lane) -> None:
    run_id = work.trigger_one("work")
    first = end(work.claim_one(run_id), OutcomeKind.RETRY)
    work.settle(first)
    work.age_timer(run_id)
    second = work.claim_one(run_id)
    assert [one.status for one in work.settle(again(first)).settled] == [Status.RETRYING]
    assert [one.status for one in work.succeed(second).settled] == [Status.SUCCEEDED]


def test_a_lost_lease_is_refused_however_often_its_result_is_tried(work: Lane) -> None:
    claim = work.claim_one(work.trigger_one("work"))
    work.age_lease(claim.run_id)
    work.settle(settlement(claim, OutcomeKind.LEASE_EXPIRED, delay=timedelta(0)))
    for kind in ENDS:
        assert work.settle(again(end(claim, kind))).refused == (claim.run_id,)
    work.cancel(claim.run_id)
    assert work.settle(again(end(claim, OutcomeKind.SUCCEEDED))).refused == (claim.run_id,)


def test_another_end_than_the_one_that_was_written_is_refused(work: Lane) -> None:
    claim = work.claim_one(work.trigger_one("work"))
    work.settle(end(claim, OutcomeKind.FAILED))
    assert work.settle(again(end(claim, OutcomeKind.SUCCEEDED))).refused == (claim.run_id,)


def test_in_a_group_each_finds_its_own(work: Lane) -> None:
    runs = [one.run_id for one in work.trigger(*(new_run("work", concurrency_key=f"k{place}") for place in range(3))).runs]
    done, open_, lost = (end(claim, OutcomeKind.SUCCEEDED) for claim in sorted(work.claim(*runs).claims, key=lambda claim: claim.run_id))
    work.settle(done)
    work.settle(lost._replace(kind=OutcomeKind.FAILED))
    answer = work.settle(*map(again, (done, open_, lost)))
    assert ({one.run_id for one in answer.settled}, answer.refused) == ({done.run_id, open_.run_id}, (lost.run_id,))
