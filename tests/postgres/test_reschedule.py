"""A run that waits gets another due time: it never starts before it, nor twice, and gives its slot to the next at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from tests.postgres.factories import LEASE, STALE, Lane, at_once, ids, new_run, settlement

pytestmark = pytest.mark.postgres
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
PAST = timedelta(minutes=-1)

QUEUES = {
    "unlimited": Queue("work"),
    "limit": Queue("work", concurrency_limit=1),
    "total": Queue("work", concurrency_limit=2, total_limit=1),
    "window": Queue("work", dispatch_window=1),
}


@pytest.fixture(params=QUEUES, ids=str)
def work(request: pytest.FixtureRequest, lane: Lane) -> Lane:
    lane.queues(QUEUES[request.param])
    return lane


def test_a_dispatched_run_gives_its_place_to_the_next(work: Lane) -> None:
    first = work.trigger_one("work")
    others = [work.trigger_one("work") for _ in range(2)]
    answer = work.reschedule(first, HOUR)
    assert answer is not None
    assert (answer.status, answer.is_refused) == (Status.SCHEDULED, False)
    assert others[0] in ids(answer.wakeups) or others[0] in ids(work.claim(others[0]).claims)
    assert first not in ids(answer.wakeups)
    assert work.events(first) == ["run.created", "run.dispatched", "run.rescheduled"]
    assert [refusal.reason for refusal in work.claim(first).refusals] == ["not_due"]


def test_a_run_moved_to_soon_is_hinted_and_one_moved_far_is_left_to_the_tick(work: Lane) -> None:
    run_id = work.trigger_one("work", delay=HOUR)
    soon = work.reschedule(run_id, MINUTE)
    far = work.reschedule(run_id, 2 * HOUR)
    assert soon is not None
    assert far is not None
    assert [(one.hint, one.delay > timedelta(seconds=50)) for one in soon.wakeups] == [(True, True)]
    assert far.wakeups == ()
    assert work.value("SELECT hinted_at FROM runlane.timer") is None


@pytest.mark.parametrize("kind", [None, OutcomeKind.RETRY, OutcomeKind.RELEASED])
def test_a_run_moved_to_now_is_dispatched_at_once(work: Lane, kind: OutcomeKind | None) -> None:
    run_id = work.trigger_one("work", delay=None if kind else HOUR)
    if kind is not None:
        work.settle(settlement(work.claim_one(run_id), kind, delay=HOUR))
    answer = work.reschedule(run_id, PAST)
    assert answer is not None
    assert answer.status is {None: Status.QUEUED, OutcomeKind.RETRY: Status.RETRYING, OutcomeKind.RELEASED: Status.RELEASED}[kind]
    assert ids(answer.wakeups) == [run_id]
    assert work.claim_one(run_id).run_id == run_id


def test_a_recorded_run_is_moved_too(work: Lane) -> None:
    recorded = work.trigger(new_run("work"), new_run("work"), eager=False).runs
    later, now = (one.run_id for one in recorded)
    assert work.reschedule(later, HOUR) is not None
    answer = work.reschedule(now, PAST)
    assert answer is not None
    assert ids(answer.wakeups) == [now]
    assert work.status(later) is Status.SCHEDULED


def test_what_is_due_keeps_its_place_when_it_is_moved_to_now(work: Lane) -> None:
    first, second = work.trigger_one("work"), work.trigger_one("work")
    before = [work.events(first), work.events(second)]
    assert [answer.status for run_id in (first, second) if (answer := work.reschedule(run_id, PAST))] == [Status.QUEUED] * 2
    assert [work.events(first), work.events(second)] == before


def test_running_and_ended_runs_are_refused_and_unknown_ones_not_found(work: Lane) -> None:
    claim = work.claim_one(work.trigger_one("work"))
    running = work.reschedule(claim.run_id, HOUR)
    work.succeed(claim)
    ended = work.reschedule(claim.run_id, HOUR)
    assert [(one.status, one.is_refused, one.wakeups) for one in (running, ended) if one] == [
        (Status.RUNNING, True, ()),
        (Status.SUCCEEDED, True, ()),
    ]
    assert work.reschedule(RunId(STALE), HOUR) is None


def test_time_outs_count_from_the_new_due_time_until_the_first_attempt(work: Lane) -> None:
    run_id = work.trigger_one("work", start_timeout=MINUTE, finish_timeout=HOUR)
    work.reschedule(run_id, 2 * HOUR)
    due = work.value("SELECT due_at FROM runlane.timer")
    rows = work.connection.execute("SELECT kind, at FROM runlane.deadline ORDER BY kind").fetchall()
    assert rows == [("finish", due + HOUR), ("start", due + MINUTE)]
    work.age_timer(run_id)
    work.settle(settlement(work.claim_one(run_id), OutcomeKind.RELEASED, delay=HOUR))
    work.reschedule(run_id, 3 * HOUR)
    assert work.connection.execute("SELECT kind, at FROM runlane.deadline ORDER BY kind").fetchall() == rows


Race = Callable[[PostgresStorage, RunId], object]
RACES: dict[str, Race] = {
    "claim": lambda storage, run_id: storage.deliveries.claim_runs([run_id], lease_for=LEASE, worker="w"),
    "cancel": lambda storage, run_id: storage.runs.cancel_run(run_id, actor=None, reason=None),
    "tick": lambda storage, run_id: storage.maintenance.due_timers(look_ahead=MINUTE, limit=10),
    "expiry": lambda storage, run_id: storage.maintenance.expire_dispatches(limit=10),
    "time-out": lambda storage, run_id: storage.maintenance.expire_deadlines(limit=10),
    "another": lambda storage, run_id: storage.operations.reschedule_run(run_id, datetime.now(UTC) + 2 * HOUR, actor=None),
}


@pytest.mark.parametrize("rival", RACES)
def test_whoever_is_first_has_the_run(lane: Lane, other_storage: PostgresStorage, rival: str) -> None:
    """A run that was moved to the future has not started; every count is true, whoever was first."""
    lane.queues(Queue("work", concurrency_limit=2, total_limit=3))
    for turn in range(8):
        run_id = lane.trigger_one("work", concurrency_key="k", delay=HOUR if turn % 2 else None, start_timeout=MINUTE)
        other = lane.trigger_one("work", concurrency_key="k")
        lane.age_timer(run_id)
        lane.age_dispatch(run_id)
        if rival == "time-out":
            lane.age_deadlines()
        moved, _ = at_once(lambda run_id=run_id: lane.reschedule(run_id, HOUR), lambda run_id=run_id: RACES[rival](other_storage, run_id))
        assert moved is not None
        events = lane.events(run_id)
        if events[-1] == "run.rescheduled":
            assert (lane.status(run_id), "run.claimed" in events) == (Status.SCHEDULED, False)
            assert not lane.claim(run_id).claims
        assert events.count("run.claimed") <= 1
        lane.storage.operations.cancel_runs([run_id, other], actor=None, reason=None)
        for lease in lane.connection.execute("SELECT run_id::text, token::text FROM runlane.lease").fetchall():
            lane.settle(Settlement(*lease, OutcomeKind.SUCCEEDED, result="null"))


@pytest.mark.parametrize("rival", ["claim", "tick", "cancel"])
def test_a_run_moved_to_now_starts_once(lane: Lane, other_storage: PostgresStorage, rival: str) -> None:
    """Its time has come anyway: it is due by its timer and by the move, and dispatched by whoever is first."""
    lane.queues(Queue("work", concurrency_limit=1))
    for _ in range(8):
        run_id = lane.trigger_one("work", delay=HOUR)
        lane.age_timer(run_id)
        at_once(lambda run_id=run_id: lane.reschedule(run_id, PAST), lambda run_id=run_id: RACES[rival](other_storage, run_id))
        lane.claim(run_id)
        events = lane.events(run_id)
        assert events.count("run.dispatched") <= 1
        assert events.count("run.claimed") == (0 if "run.cancelled" in events else 1), events
        for lease in lane.connection.execute("SELECT run_id::text, token::text FROM runlane.lease").fetchall():
            lane.settle(Settlement(*lease, OutcomeKind.SUCCEEDED, result="null"))
