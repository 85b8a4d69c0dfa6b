"""G6: what is due in the future has one hint under way that comes when it is due, whoever recorded it and however late the ticks are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.durations import ZERO
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from runlane.ports.stores import PublishMark, PublishResult, Wakeup
from runlane.services.maintenance.due_timers import LOOK_AHEAD
from tests.postgres.factories import Lane, at_once, ids, new_run, settlement
from tests.postgres.visits import WatchedStorage

pytestmark = pytest.mark.postgres
HORIZON = timedelta(minutes=15)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
UNHINTED = "SELECT count(*) FROM runlane.timer WHERE hinted_at IS NULL AND due_at <= clock_timestamp() + interval '1 second'"


@pytest.fixture
def work(lane: Lane) -> Lane:
    lane.queues(Queue("work"), Queue("other"))
    return lane


def tick(lane: Lane, limit: int = 500) -> list[Wakeup]:
    """One pass: a step after the other until nothing is left."""
    sent: list[Wakeup] = []
    while True:
        step = lane.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=limit)
        sent += step.wakeups
        if not step.more or not step.count:
            return sent


def fired(lane: Lane) -> list[RunId]:
    """What a poller makes ready, which does not look back."""
    return ids(lane.storage.maintenance.due_timers(look_ahead=ZERO, limit=500).wakeups)


def let_pass(lane: Lane, time: timedelta) -> None:
    lane.connection.execute("UPDATE runlane.timer SET due_at = due_at - %s", (time,))


# One hint for each, in time


@pytest.mark.parametrize(("delay", "is_hinted"), [(HORIZON, True), (HORIZON + SECOND, False)])
@pytest.mark.parametrize("kind", [None, OutcomeKind.RETRY, OutcomeKind.RELEASED, OutcomeKind.HANDED_BACK])
def test_what_is_due_within_the_horizon_is_hinted_at_once_and_the_rest_by_a_tick(
    work: Lane, delay: timedelta, is_hinted: bool, kind: OutcomeKind | None
) -> None:
    if kind is None:
        sent = work.trigger(new_run("work", delay=delay)).wakeups
    else:
        sent = work.settle(settlement(work.claim_one(work.trigger_one("work")), kind, delay=delay)).wakeups
    assert [(one.hint, one.delay) for one in sent] == ([(True, delay)] if is_hinted else [])
    assert tick(work) == []
    let_pass(work, HORIZON - MINUTE)
    assert len(tick(work)) == (0 if is_hinted else 1)
    assert tick(work) == []


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "deferred"])
def test_two_ticks_in_a_row_may_be_missed(work: Lane, eager: bool) -> None:
    """A tick every three minutes, the first of them at once: whatever is due has had its hint before."""
    work.trigger(*(new_run("work", delay=timedelta(seconds=second)) for second in range(2, 2400, 60)), eager=eager)
    seen = ids(tick(work))
    while work.value("SELECT count(*) FROM runlane.timer"):
        for _ in range(3):
            let_pass(work, MINUTE)
            assert work.value(UNHINTED) == 0
            work.claim(*ids_of_due(work))
        seen += ids(one for one in tick(work) if one.hint)
    assert len(seen) == len(set(seen))


def ids_of_due(lane: Lane) -> list[RunId]:
    return [run_id for (run_id,) in lane.connection.execute("SELECT run_id::text FROM runlane.timer WHERE due_at <= clock_timestamp()")]


def test_two_ticks_at_once_send_each_hint_once(work: Lane, other_storage: PostgresStorage) -> None:
    runs = [one.run_id for one in work.trigger(*(new_run("work", delay=MINUTE) for _ in range(60)), eager=False).runs]
    sent: list[RunId] = []
    while len(sent) < len(runs):
        steps = at_once(
            lambda: work.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=20),
            lambda: other_storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=20),
        )
        assert any(step.count for step in steps)
        sent += [run_id for step in steps for run_id in ids(step.wakeups)]
    assert sorted(sent) == sorted(runs)


def test_a_callers_transaction_is_followed_by_the_hints_of_its_own_queue(work: Lane, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        soon, late = (
            work.storage.triggers.record_runs(caller, [new_run("work", delay=delay, concurrency_key="k")]).runs[0].run_id
            for delay in (MINUTE, 10 * MINUTE)
        )
        assert work.storage.triggers.dispatch(["work"]) == ()
    assert work.storage.triggers.dispatch(["other"]) == ()
    (hint,) = work.storage.triggers.dispatch(["work"])
    assert (hint.run_id, hint.hint, hint.concurrency_key) == (soon, True, "k")
    assert ZERO < hint.delay <= MINUTE
    assert work.storage.triggers.dispatch(["work"]) == ()
    let_pass(work, 7 * MINUTE)
    assert late in ids(tick(work))


@pytest.mark.parametrize("rival", ["reschedule", "cancel"])
def test_a_hint_that_failed_is_marked_while_its_run_moves(work: Lane, other_storage: PostgresStorage, rival: str) -> None:
    """Whoever marks locks timers before dispatch rows, as those who move runs do, and waits for none."""
    for _ in range(12):
        sent, hinted = work.trigger_one("work"), work.trigger_one("work", delay=MINUTE)
        results = [PublishMark(PublishResult(sent, published=True)), PublishMark(PublishResult(hinted, published=False, hint=True))]
        moves: dict[str, Callable[[], object]] = {
            "reschedule": lambda hinted=hinted: other_storage.operations.reschedule_run(hinted, datetime.now(UTC), actor=None),  # type: ignore[misc]
            "cancel": lambda sent=sent, hinted=hinted: other_storage.operations.cancel_runs([hinted, sent], actor=None, reason=None),  # type: ignore[misc]
        }
        at_once(lambda results=results: work.storage.triggers.mark_published(results), moves[rival])  # type: ignore[misc]
        assert not work.claim(hinted).claims or rival == "reschedule"


# Moved and ended while the hint is under way


def test_a_cancelled_timer_starts_nothing(work: Lane) -> None:
    run_id = work.trigger_one("work", delay=MINUTE)
    work.cancel(run_id)
    assert [refusal.reason for refusal in work.claim(run_id, run_id).refusals] == ["terminal"]
    assert tick(work) == []
    assert work.events(run_id) == ["run.created", "run.cancelled"]


def test_a_timer_moved_to_sooner_has_a_hint_of_its_own_and_the_older_one_starts_nothing(work: Lane) -> None:
    run_id = work.trigger_one("work", delay=10 * MINUTE)
    answer = work.reschedule(run_id, MINUTE)
    assert answer is not None
    assert [(one.run_id, one.hint, one.delay <= MINUTE) for one in answer.wakeups] == [(run_id, True, True)]
    let_pass(work, MINUTE)
    claim = work.claim_one(run_id)
    assert [refusal.reason for refusal in work.claim(run_id).refusals] == ["leased"]
    work.succeed(claim)
    assert [refusal.reason for refusal in work.claim(run_id).refusals] == ["terminal"]


def test_a_timer_moved_to_later_is_not_started_by_the_older_hint(work: Lane) -> None:
    run_id = work.trigger_one("work", delay=MINUTE)
    work.reschedule(run_id, 10 * MINUTE)
    let_pass(work, MINUTE)
    (refusal,) = work.claim(run_id).refusals
    assert refusal.reason == "not_due"
    assert refusal.due_in is not None
    assert 8 * MINUTE < refusal.due_in <= 9 * MINUTE
    let_pass(work, 9 * MINUTE)
    assert work.claim_one(run_id).attempt == 1


@pytest.mark.parametrize("to", [MINUTE, -MINUTE], ids=["later", "now"])
def test_a_timer_that_is_moved_while_its_hint_claims_it_starts_once_and_never_early(
    work: Lane, other_storage: PostgresStorage, to: timedelta
) -> None:
    for _ in range(10):
        run_id = work.trigger_one("work", delay=MINUTE)
        work.age_timer(run_id)
        moved, claimed = at_once(
            lambda run_id=run_id: work.reschedule(run_id, to),  # type: ignore[misc]
            lambda run_id=run_id: other_storage.deliveries.claim_runs([run_id], lease_for=MINUTE, worker="o"),  # type: ignore[misc]
        )
        assert moved is not None
        is_later = to > ZERO and not moved.is_refused
        started = [*ids(claimed.claims), *ids(work.claim(run_id).claims)]
        assert started == ([] if is_later else [run_id])
        record = work.storage.runs.get_run(run_id)
        assert record is not None
        assert record.status is (Status.SCHEDULED if is_later else Status.RUNNING)


# Timers that have gone cost nothing, though a snapshot is held


@contextmanager
def held_snapshot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM runlane.timer")
        yield


GONE = 1500


@pytest.mark.direct(reason="auto_explain is set for a session")
def test_neither_a_look_nor_a_step_walks_over_timers_that_have_gone(dsn: str, work: Lane) -> None:
    work.trigger(*(new_run("work", delay=timedelta(hours=1, milliseconds=place)) for place in range(GONE)))
    work.connection.execute("UPDATE runlane.queue SET dispatch_window = 0")
    with held_snapshot(dsn), closing(WatchedStorage(dsn)) as storage:
        let_pass(work, timedelta(hours=2))
        steps = []
        for _ in range(6):
            with storage.session.watching():
                storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=GONE // 6)
            steps.append(sum(count for text, count in storage.session.buffers.items() if "ORDER BY due_at LIMIT" in text))
        assert work.value("SELECT count(*) FROM runlane.timer") == 0
        tick(work)
        with storage.session.watching():
            assert storage.deliveries.look(["work"]).due_in is None
            assert fired(work) == []
    assert max(steps[1:]) <= 1.5 * steps[0]
    assert sum(count for text, count in storage.session.buffers.items() if 'FROM "runlane".timer' in text) < 40


@pytest.mark.direct(reason="auto_explain is set for a session")
def test_sending_hints_does_not_walk_over_those_that_were_sent(dsn: str, work: Lane) -> None:
    work.trigger(*(new_run("work", delay=timedelta(seconds=150 + place / 100)) for place in range(GONE)), eager=False)
    with held_snapshot(dsn), closing(WatchedStorage(dsn)) as storage:
        steps = []
        for _ in range(6):
            with storage.session.watching():
                assert storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=GONE // 6).count == GONE // 6
            steps.append(sum(count for text, count in storage.session.buffers.items() if "hinted AS" in text))
    assert max(steps) <= 1.5 * steps[0]


def test_a_timer_that_was_committed_late_is_found_by_the_tick(work: Lane, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        run_id = work.storage.triggers.record_runs(caller, [new_run("work", delay=SECOND)]).runs[0].run_id
        caller.execute("UPDATE runlane.timer SET due_at = clock_timestamp() - interval '1 minute'")
        assert tick(work) == []
    assert fired(work) == []
    assert ids(tick(work)) == [run_id]


def test_a_backlog_that_does_not_end_is_left_once_a_minute_to_look_back(work: Lane) -> None:
    for _ in range(2):
        work.age_timer(work.trigger_one("work", delay=MINUTE))
    assert work.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=1).more
    late = work.trigger_one("work", delay=MINUTE)
    work.connection.execute("UPDATE runlane.timer SET due_at = clock_timestamp() - interval '1 day' WHERE run_id = %s", (late,))
    assert late not in ids(work.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=1).wakeups)
    work.connection.execute("UPDATE runlane.timer_floor SET cut_at = cut_at - interval '1 minute'")
    assert late in ids(work.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=1).wakeups)


def test_a_clock_that_was_put_back_hides_nothing(work: Lane) -> None:
    """As after a failover to a server whose clock is behind."""
    tick(work)
    work.connection.execute("UPDATE runlane.timer_floor SET due_at = due_at + interval '5 minutes'")
    run_id = work.trigger_one("work", delay=MINUTE)
    let_pass(work, MINUTE)
    assert work.storage.deliveries.look(["work"]).due_in is not None
    assert fired(work) == [run_id]


# Backlogs


def test_after_an_outage_what_was_due_is_fired_once_in_the_order_of_its_time(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    runs = [lane.trigger_one("work", delay=timedelta(minutes=minutes)) for minutes in (31, 2, 45, 14)]
    let_pass(lane, timedelta(hours=1))
    assert lane.drain(tick(lane)) == [runs[place] for place in (1, 3, 0, 2)]
    assert tick(lane) == []
    assert all(lane.events(run_id).count("run.claimed") == 1 for run_id in runs)


def test_timers_of_one_instant_are_taken_and_hinted_in_bounded_steps(work: Lane) -> None:
    work.trigger(*(new_run("work", run_at=datetime.now(UTC) + MINUTE) for _ in range(7)), eager=False)
    work.connection.execute("UPDATE runlane.timer SET due_at = (SELECT min(due_at) FROM runlane.timer)")
    for is_due in (False, True):
        steps = [work.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=3) for _ in range(3)]
        assert [(step.count, step.more) for step in steps] == [(3, True), (3, True), (1, False)]
        sent = [wakeup for step in steps for wakeup in step.wakeups]
        assert (len(set(ids(sent))), {wakeup.hint for wakeup in sent}) == (7, {not is_due})
        let_pass(work, HORIZON)
