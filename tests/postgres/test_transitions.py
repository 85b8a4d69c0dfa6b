"""Every status × every verb, through the real SQL, against the one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import Status, Verb, transition
from runlane.ports.stores import ClaimedRun
from tests.postgres.factories import STALE, Lane, settlement

pytestmark = pytest.mark.postgres
HOUR = timedelta(hours=1)
_KEYS: Iterator[int] = count()


@dataclass
class Subject:
    """A run brought to a status, and the last claim of it, for a worker that tries to settle."""

    lane: Lane
    run_id: RunId
    claim: ClaimedRun


def subject(lane: Lane, status: Status) -> Subject:
    delay = HOUR if status is Status.SCHEDULED else None
    run_id = lane.trigger_one("work", concurrency_key=f"k{next(_KEYS)}", delay=delay, start_timeout=HOUR, finish_timeout=HOUR)
    if status in (Status.QUEUED, Status.SCHEDULED):
        return Subject(lane, run_id, _ANY_CLAIM._replace(run_id=run_id))
    claim = lane.claim_one(run_id)
    _AFTER_CLAIM[status](lane, claim)
    return Subject(lane, run_id, claim)


def _settled(kind: OutcomeKind, **fields: object) -> Callable[[Lane, ClaimedRun], object]:
    return lambda lane, claim: lane.settle(settlement(claim, kind, **fields))


def _cancelled(lane: Lane, claim: ClaimedRun) -> None:
    lane.cancel(claim.run_id)
    lane.succeed(claim)


_ANY_CLAIM = ClaimedRun(RunId(STALE), STALE, "t", "q", "{}", 1, 0, 3, None, None, None, None, None)  # type: ignore[arg-type]
_AFTER_CLAIM: dict[Status, Callable[[Lane, ClaimedRun], object]] = {
    Status.RUNNING: lambda lane, claim: None,
    Status.RETRYING: _settled(OutcomeKind.RETRY, delay=HOUR),
    Status.RELEASED: _settled(OutcomeKind.RELEASED, delay=HOUR),
    Status.CANCELLATION_REQUESTED: lambda lane, claim: lane.cancel(claim.run_id),
    Status.SUCCEEDED: _settled(OutcomeKind.SUCCEEDED),
    Status.FAILED: _settled(OutcomeKind.FAILED),
    Status.CANCELLED: _cancelled,
}


def _claim(it: Subject) -> None:
    it.lane.age_timer(it.run_id)
    it.lane.claim(it.run_id)


def _settle(kind: OutcomeKind, **fields: object) -> Callable[[Subject], object]:
    return lambda it: it.lane.settle(settlement(it.claim, kind, **fields))


def _recover(*, final: bool) -> Callable[[Subject], object]:
    def recover(it: Subject) -> None:
        it.lane.age_lease(it.run_id)
        it.lane.settle(settlement(it.claim, OutcomeKind.LEASE_EXPIRED, delay=HOUR, final=final))

    return recover


def _pass_deadline(kind: str) -> Callable[[Subject], object]:
    def expire(it: Subject) -> None:
        it.lane.connection.execute("DELETE FROM runlane.deadline WHERE run_id <> %s OR kind <> %s", (it.run_id, kind))
        it.lane.age_deadlines()
        assert it.lane.storage.maintenance.expire_deadlines(limit=10).count == 1

    return expire


VERBS: dict[Verb, Callable[[Subject], object]] = {
    Verb.CLAIM: _claim,
    Verb.SUCCEED: _settle(OutcomeKind.SUCCEEDED),
    Verb.FAIL: _settle(OutcomeKind.FAILED),
    Verb.RETRY: _settle(OutcomeKind.RETRY, delay=HOUR),
    Verb.RELEASE: _settle(OutcomeKind.RELEASED, delay=HOUR),
    Verb.CANCEL: lambda it: it.lane.cancel(it.run_id),
    Verb.EXPIRE_START: _pass_deadline("start"),
    Verb.TIME_OUT: _pass_deadline("finish"),
    Verb.RECOVER_RETRY: _recover(final=False),
    Verb.RECOVER_FAIL: _recover(final=True),
    Verb.HAND_BACK: _settle(OutcomeKind.HANDED_BACK, delay=timedelta(0)),
    Verb.RESCHEDULE: lambda it: it.lane.storage.operations.reschedule_run(it.run_id, datetime.now(UTC) + 2 * HOUR, actor="ann"),
}
_DONE_BY_THE_LEASE = {Verb.SUCCEED, Verb.FAIL, Verb.RETRY, Verb.RELEASE, Verb.HAND_BACK}


@pytest.fixture(params=[None, 1], ids=["unlimited", "limit1"])
def work(request: pytest.FixtureRequest, lane: Lane) -> Lane:
    lane.queues(Queue("work", concurrency_limit=request.param))
    return lane


@pytest.mark.parametrize("status", list(Status))
def test_every_verb_leads_where_the_table_says(work: Lane, status: Status) -> None:
    expected = {verb: transition(status, verb) or status for verb in Verb}
    reached, written = {}, {}
    for verb in Verb:
        it = subject(work, status)
        assert work.status(it.run_id) is status
        before = work.events(it.run_id)
        VERBS[verb](it)
        reached[verb] = work.status(it.run_id)
        written[verb] = work.events(it.run_id)[len(before) :]
    assert reached == expected
    for verb in Verb:
        if transition(status, verb) is None:
            assert written[verb] == (["run.result_refused"] if verb in _DONE_BY_THE_LEASE else []), verb
        else:
            assert written[verb], verb


@pytest.mark.parametrize("status", [status for status in Status if status.is_terminal])
def test_a_terminal_run_never_changes_again(work: Lane, status: Status) -> None:
    it = subject(work, status)
    record = work.storage.runs.get_run(it.run_id)
    for verb in Verb:
        VERBS[verb](it) if verb not in (Verb.EXPIRE_START, Verb.TIME_OUT) else None
    assert work.storage.runs.get_run(it.run_id) == record


def test_failures_count_since_the_last_release(work: Lane) -> None:
    run_id = work.trigger_one("work")
    zero = timedelta(0)
    for kind, failures in [(OutcomeKind.RETRY, 1), (OutcomeKind.RETRY, 2), (OutcomeKind.RELEASED, 0), (OutcomeKind.RETRY, 1)]:
        work.settle(settlement(work.claim_one(run_id), kind, delay=zero))
        record = work.storage.runs.get_run(run_id)
        assert record is not None
        assert record.failures == failures
    claim = work.claim_one(run_id)
    assert (claim.attempt, claim.failures) == (5, 1)


@pytest.mark.parametrize("limit", [None, 1])
def test_a_release_that_the_worker_brought_about_forgives_no_failure(lane: Lane, limit: int | None) -> None:
    lane.queues(Queue("work", concurrency_limit=limit))
    run_id = lane.trigger_one("work")
    zero = timedelta(0)
    for kind, keeps in [(OutcomeKind.RETRY, False), (OutcomeKind.RETRY, False), (OutcomeKind.RELEASED, True)]:
        lane.settle(settlement(lane.claim_one(run_id), kind, delay=zero, keeps_failures=keeps))
    claim = lane.claim_one(run_id)
    assert (claim.attempt, claim.failures) == (4, 2)


def test_a_handed_back_claim_does_not_count_and_keeps_its_place(work: Lane) -> None:
    run_id = work.trigger_one("work")
    before = work.claim_one(run_id)
    work.settle(settlement(before, OutcomeKind.HANDED_BACK, delay=timedelta(0), reason="not_started"))
    again = work.claim_one(run_id)
    assert (again.attempt, again.failures, again.due_at) == (1, 0, before.due_at)


def test_a_cancelled_run_keeps_the_result_of_its_last_attempt(work: Lane) -> None:
    claim = work.claim_one(work.trigger_one("work"))
    work.cancel(claim.run_id)
    assert work.settle(settlement(claim, result='{"kept":1}')).settled[0].status is Status.CANCELLED
    record = work.storage.runs.get_run(claim.run_id)
    assert record is not None
    assert record.result == {"kept": 1}


def test_cancelling_twice_is_one_cancellation(work: Lane) -> None:
    claim = work.claim_one(work.trigger_one("work"))
    assert [work.cancel(claim.run_id)[0] for _ in range(2)] == [Status.CANCELLATION_REQUESTED] * 2
    work.succeed(claim)
    assert work.cancel(claim.run_id)[0] is Status.CANCELLED
    assert work.events(claim.run_id).count("run.cancellation_requested") == 1
    assert work.events(claim.run_id).count("run.cancelled") == 1


def test_cancelling_what_is_not_there_says_so(work: Lane) -> None:
    assert work.cancel(RunId(STALE)) == (None, ())
