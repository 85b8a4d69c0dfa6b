"""What a trigger does about the active run of its key: `latest` leaves one successor, `cancel` stops it and takes its place."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from runlane.domain.errors import ConflictError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.records import RunFilter
from runlane.domain.run import Status, TriggerOutcome
from runlane.ports.stores import NewRun
from tests.postgres.ends import ENDS, claimed
from tests.postgres.factories import LEASE, PAST, STALE, Lane, ids, new_run, settlement

pytestmark = pytest.mark.postgres
HOUR = timedelta(hours=1)


@pytest.fixture(params=["unlimited", "limit1", "total1"])
def shaped(request: pytest.FixtureRequest, lane: Lane) -> Lane:
    limits = {"limit1": (1, None), "total1": (None, 1)}.get(request.param, (None, None))
    lane.queues(Queue("earlier"), Queue("work", concurrency_limit=limits[0], total_limit=limits[1]), Queue("other"))
    return lane


@pytest.fixture
def work(lane: Lane) -> Lane:
    lane.queues(Queue("earlier"), Queue("work", concurrency_limit=1), Queue("other"))
    return lane


def latest(payload: object = None, key: str = "s", queue: str = "work", **options: Any) -> NewRun:
    return new_run(queue, singleton_key=key, singleton_mode=options.pop("mode", "latest"), payload=json.dumps(payload), **options)


def replacing(payload: object = None, key: str = "s", queue: str = "work", **options: Any) -> NewRun:
    return latest(payload, key, queue, mode="cancel", **options)


def owner(lane: Lane, **options: Any) -> RunId:
    return lane.trigger_one("work", singleton_key="s", start_timeout=HOUR, finish_timeout=HOUR, **options)


def last_event(lane: Lane, run_id: RunId) -> tuple[str, object]:
    event = lane.storage.runs.list_events(run_id)[-1]
    return event.type.value, event.data


@pytest.mark.parametrize("end", ENDS)
def test_the_newest_of_several_successors_starts_in_the_transaction_in_which_the_active_run_ends(shaped: Lane, end: str) -> None:
    active = owner(shaped)
    finish = ENDS[end](shaped, active)
    older, newest = (shaped.trigger(latest(payload)).runs[0] for payload in (1, 2))
    assert (older.outcome, newest.outcome, newest.status) == (TriggerOutcome.CREATED, TriggerOutcome.CREATED, Status.QUEUED)
    assert shaped.status(older.run_id) is Status.CANCELLED
    assert last_event(shaped, older.run_id) == ("run.cancelled", {"reason": "superseded", "by": newest.run_id})
    assert shaped.events(newest.run_id) == ["run.created"]
    wakeups = finish(shaped.storage)
    assert shaped.status(active).is_terminal
    assert newest.run_id in ids(wakeups)
    (claim,) = claimed(shaped, wakeups)
    assert (claim.run_id, json.loads(claim.payload)) == (newest.run_id, 2)
    shaped.succeed(claim)
    assert shaped.trigger(latest()).runs[0].outcome is TriggerOutcome.CREATED


@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.RELEASED, OutcomeKind.HANDED_BACK])
def test_a_run_that_goes_on_keeps_its_successor_waiting(work: Lane, kind: OutcomeKind) -> None:
    claim = work.claim_one(owner(work))
    (held,) = work.trigger(latest()).runs
    assert held.run_id not in ids(work.settle(settlement(claim, kind, delay=timedelta(0))).wakeups)
    assert work.events(held.run_id) == ["run.created"]
    again = work.claim_one(claim.run_id)
    assert ids(work.succeed(again).wakeups) == [held.run_id]


def test_without_an_active_run_the_new_one_starts(work: Lane) -> None:
    for new in (latest(), replacing()):
        batch = work.trigger(new)
        assert ids(batch.wakeups) == [batch.runs[0].run_id]
        work.succeed(work.claim_one(batch.runs[0].run_id))


@pytest.mark.parametrize("state", ["queued", "scheduled", "recorded", "released"])
def test_cancel_ends_a_waiting_run_and_starts_the_new_one_in_the_same_transaction(shaped: Lane, state: str) -> None:
    active = shaped.trigger(latest(delay=HOUR if state == "scheduled" else None), eager=state != "recorded").runs[0].run_id
    if state == "released":
        shaped.settle(settlement(shaped.claim_one(active), OutcomeKind.RELEASED, delay=HOUR))
    batch = shaped.trigger(replacing(2, trace={"traceparent": "00-1"}))
    (new,) = batch.runs
    assert (new.outcome, new.status, shaped.status(active)) == (TriggerOutcome.CREATED, Status.QUEUED, Status.CANCELLED)
    assert last_event(shaped, active) == ("run.cancelled", {"reason": "superseded", "by": new.run_id})
    assert [(wakeup.run_id, wakeup.trace) for wakeup in batch.wakeups] == [(new.run_id, {"traceparent": "00-1"})]
    assert shaped.claim_one(new.run_id).payload == "2"


def test_cancel_asks_a_running_run_to_stop_and_follows_it(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    held = work.trigger(latest(1)).runs[0].run_id
    batch = work.trigger(replacing(2))
    assert (batch.wakeups, work.status(claim.run_id)) == ((), Status.CANCELLATION_REQUESTED)
    assert last_event(work, claim.run_id) == ("run.cancellation_requested", {"reason": "superseded", "by": batch.runs[0].run_id})
    assert work.status(held) is Status.CANCELLED
    settled = work.succeed(claim)
    assert settled.settled[0].status is Status.CANCELLED
    assert ids(settled.wakeups) == [batch.runs[0].run_id]


def test_cancel_after_cancel_asks_only_once(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    first, second = (work.trigger(replacing(payload)).runs[0].run_id for payload in (1, 2))
    assert work.events(claim.run_id).count("run.cancellation_requested") == 1
    assert (work.status(first), ids(work.succeed(claim).wakeups)) == (Status.CANCELLED, [second])


def test_return_names_the_active_run_and_not_its_successor(work: Lane) -> None:
    active = owner(work)
    held = work.trigger(latest()).runs[0].run_id
    (returned,) = work.trigger(latest(mode="return")).runs
    assert (returned.run_id, returned.outcome) == (active, TriggerOutcome.SINGLETON_ACTIVE)
    assert work.status(held) is Status.QUEUED


# What becomes of a successor before its time.


def test_a_successor_is_listed_and_counted_as_waiting(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    held, later = work.trigger(latest()).runs[0].run_id, work.trigger(latest(key="t"), latest(key="t", delay=HOUR)).runs[1].run_id
    work.cancel(work.trigger(latest(key="u")).runs[0].run_id)
    assert (work.status(held), work.status(later)) == (Status.QUEUED, Status.SCHEDULED)
    assert held in [run.run_id for run in work.storage.runs.list_runs(RunFilter(frozenset({Status.QUEUED})), limit=10, cursor=None).data]
    scheduled = work.storage.runs.list_runs(RunFilter(frozenset({Status.SCHEDULED})), limit=10, cursor=None).data
    assert [run.run_id for run in scheduled] == [later]
    (stats,) = work.storage.queues.stats(["work"])
    assert stats.running == 1
    assert stats.waiting + stats.dispatched == 3
    work.succeed(claim)


def test_a_successor_is_cancelled_like_any_waiting_run(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    held = work.trigger(latest()).runs[0].run_id
    assert work.cancel(held) == (Status.CANCELLED, ())
    assert work.cancel(held) == (Status.CANCELLED, ())
    assert work.events(held) == ["run.created", "run.cancelled"]
    assert work.succeed(claim).wakeups == ()
    assert work.claim(held).refusals[0].reason == "terminal"


@pytest.mark.parametrize("kind", ["start", "finish"])
def test_the_time_outs_of_a_successor_run_from_its_creation(work: Lane, kind: str) -> None:
    claim = work.claim_one(owner(work))
    held = work.trigger(latest(**{f"{kind}_timeout": HOUR})).runs[0].run_id
    work.connection.execute(f"UPDATE runlane.deadline SET at = {PAST} WHERE run_id = %s".encode(), (held,))
    assert work.storage.maintenance.expire_deadlines(limit=10).count == 1
    assert last_event(work, held) == ("run.cancelled", {"reason": f"{kind}_timeout"})
    assert work.succeed(claim).wakeups == ()


def test_an_active_run_and_its_successor_that_time_out_together_promote_nobody(work: Lane) -> None:
    active = owner(work)
    held = work.trigger(latest(start_timeout=HOUR)).runs[0].run_id
    work.age_deadlines()
    assert work.storage.maintenance.expire_deadlines(limit=10).wakeups == ()
    assert (work.status(active), work.status(held)) == (Status.CANCELLED, Status.CANCELLED)


def test_a_wakeup_for_a_successor_starts_nothing(work: Lane) -> None:
    work.claim_one(owner(work))
    held = work.trigger(latest()).runs[0].run_id
    assert work.claim(held).claims == ()
    assert work.status(held) is Status.QUEUED


def test_a_delay_holds_beyond_the_promotion(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    held = work.trigger(latest(delay=timedelta(minutes=5))).runs[0].run_id
    (hint,) = work.succeed(claim).wakeups
    assert (hint.run_id, hint.hint) == (held, True)
    assert timedelta(minutes=4) < hint.delay <= timedelta(minutes=5)
    assert (work.status(held), work.claim(held).refusals[0].reason) == (Status.SCHEDULED, "not_due")
    work.age_timer(held)
    assert ids(work.claim(held).claims) == [held]


def test_a_successor_that_is_rescheduled_stays_one(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    successor = work.trigger(latest(start_timeout=HOUR)).runs[0].run_id
    for after, status in ((HOUR, Status.SCHEDULED), (-HOUR, Status.QUEUED), (timedelta(minutes=5), Status.SCHEDULED)):
        answer = work.reschedule(successor, after)
        assert answer is not None
        assert (answer.status, answer.wakeups, work.status(successor)) == (status, (), status)
    assert work.events(successor) == ["run.created", *["run.rescheduled"] * 3]
    (hint,) = work.succeed(claim).wakeups
    assert (hint.run_id, hint.hint) == (successor, True)


def test_a_delay_that_has_passed_meanwhile_holds_nothing(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    held = work.trigger(latest(delay=timedelta(minutes=5))).runs[0].run_id
    work.connection.execute(f"UPDATE runlane.successor SET due_at = {PAST}".encode())
    assert ids(work.succeed(claim).wakeups) == [held]


@pytest.mark.parametrize("queue", ["other", "earlier"])
@pytest.mark.parametrize("end", ["succeeds", "is cancelled while it waits"])
def test_a_successor_on_another_queue_is_woken_there(work: Lane, queue: str, end: str) -> None:
    finish = ENDS[end](work, owner(work))
    held = work.trigger(latest(queue=queue)).runs[0].run_id
    (wakeup,) = finish(work.storage)
    assert (wakeup.run_id, wakeup.queue, wakeup.delay) == (held, queue, timedelta(0))
    assert ids(work.claim(held).claims) == [held]


def test_a_successor_on_another_queue_whose_wakeup_is_lost_is_found_by_the_tick(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    held = work.trigger(latest(queue="other")).runs[0].run_id
    work.succeed(claim)
    assert ids(work.storage.maintenance.fold_recorded(limit=10).wakeups) == [held]


def test_a_successor_waits_for_capacity_like_any_other(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    claim = lane.claim_one(owner(lane))
    busy = lane.claim_one(lane.trigger_one("work", concurrency_key="k"))
    held = lane.trigger(latest(concurrency_key="k")).runs[0].run_id
    assert lane.succeed(claim).wakeups == ()
    assert ids(lane.succeed(busy).wakeups) == [held]


def test_a_promoted_run_respects_a_pause_and_a_policy_that_changed(lane: Lane) -> None:
    lane.queues(Queue("work"))
    claim = lane.claim_one(owner(lane))
    held = lane.trigger(latest(concurrency_key="k")).runs[0].run_id
    lane.queues(Queue("work", concurrency_limit=1))
    lane.storage.queues.pause("work", tenant=None, concurrency_key="k", actor=None)
    assert lane.succeed(claim).wakeups == ()
    assert ids(lane.storage.queues.resume("work", tenant=None, concurrency_key="k", actor=None)) == [held]


# Several at once.


def test_of_many_in_one_call_the_last_of_each_key_is_left(shaped: Lane) -> None:
    claim = shaped.claim_one(owner(shaped))
    batch = shaped.trigger(*(latest(place, key) for place in range(5) for key in ("s", "t")))
    runs = dict(zip([(key, place) for place in range(5) for key in ("s", "t")], batch.runs, strict=True))
    assert {run.outcome for run in batch.runs} == {TriggerOutcome.CREATED}
    assert [runs["s", place].status for place in range(5)] == [*[Status.CANCELLED] * 4, Status.QUEUED]
    assert [runs["t", place].status for place in range(5)] == [Status.QUEUED, *[Status.CANCELLED] * 3, Status.QUEUED]
    assert all(shaped.status(run.run_id) is run.status for run in batch.runs)
    left = [runs["s", 4].run_id, runs["t", 0].run_id, runs["t", 4].run_id]
    assert sorted(shaped.drain([*batch.wakeups, *shaped.succeed(claim).wakeups])) == sorted(left)


def test_of_many_that_cancel_in_one_call_the_last_one_starts(shaped: Lane) -> None:
    waiting = owner(shaped)
    batch = shaped.trigger(*(replacing(place, key) for place in range(4) for key in ("s", "t")))
    assert [run.status for run in batch.runs] == [*[Status.CANCELLED] * 6, Status.QUEUED, Status.QUEUED]
    assert all(shaped.status(run.run_id) is run.status for run in batch.runs)
    assert shaped.status(waiting) is Status.CANCELLED
    last = {run.run_id for run in batch.runs[-2:]}
    assert set(shaped.drain(batch.wakeups)) == last


def test_modes_mix_in_one_call(work: Lane) -> None:
    first, held, returned, replacement, later = work.trigger(latest(1), latest(2), latest(3, mode="return"), replacing(4), latest(5)).runs
    assert (returned.run_id, returned.outcome) == (first.run_id, TriggerOutcome.SINGLETON_ACTIVE)
    assert [work.status(run.run_id) for run in (first, held, replacement, later)] == [
        Status.CANCELLED,
        Status.CANCELLED,
        Status.QUEUED,
        Status.QUEUED,
    ]
    assert ids(work.succeed(work.claim_one(replacement.run_id)).wakeups) == [later.run_id]


def test_an_idempotency_key_stays_with_its_run_whatever_becomes_of_it(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    first = work.trigger(latest(1, idempotency_key="i", payload_hash="h", idempotency_ttl=HOUR)).runs[0]
    again = work.trigger(latest(1, idempotency_key="i", payload_hash="h", idempotency_ttl=HOUR)).runs[0]
    assert (again.run_id, again.outcome, again.status) == (first.run_id, TriggerOutcome.DUPLICATE, Status.QUEUED)
    work.trigger(latest(2))
    once_more = work.trigger(latest(1, idempotency_key="i", payload_hash="h", idempotency_ttl=HOUR)).runs[0]
    assert (once_more.run_id, once_more.status) == (first.run_id, Status.CANCELLED)
    work.succeed(claim)


# Beside what operators do.


def test_runs_that_are_cancelled_together_promote_who_is_left(work: Lane) -> None:
    first, other = owner(work), work.trigger_one("other", singleton_key="t")
    held = [work.trigger(latest(key=key, queue=queue)).runs[0].run_id for key, queue in (("s", "other"), ("t", "work"))]
    last = work.trigger_one("work", singleton_key="u")
    unwanted = work.trigger(latest(key="u")).runs[0].run_id
    statuses, wakeups = work.storage.operations.cancel_runs([unwanted, last, other, first], actor=None, reason=None)
    assert set(statuses.values()) == {Status.CANCELLED}
    assert set(ids(wakeups)) == set(held)


def test_a_run_now_that_would_have_to_wait_for_an_active_run_is_refused(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    for mode in ("latest", "cancel"):
        with pytest.raises(ConflictError) as caught:
            work.storage.operations.run_now(latest(mode=mode), lease_for=LEASE, worker="w")
        assert caught.value.code == "singleton_active"
    assert work.value("SELECT count(*) FROM runlane.run") == 1
    assert work.status(claim.run_id) is Status.RUNNING


def test_a_run_now_that_cancels_a_waiting_run_takes_its_place_at_once(shaped: Lane) -> None:
    active = owner(shaped)
    started = shaped.storage.operations.run_now(replacing(2), lease_for=LEASE, worker="w")
    assert started.claim is not None
    assert (shaped.status(started.claim.run_id), shaped.status(active)) == (Status.RUNNING, Status.CANCELLED)


# In a caller's own transaction.


@pytest.fixture
def caller(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn)


def record(lane: Lane, caller: psycopg.Connection, *runs: NewRun) -> list[RunId]:
    return [run.run_id for run in lane.storage.triggers.record_runs(caller, runs).runs]


def test_an_open_transaction_keeps_no_run_from_ending(work: Lane, caller: psycopg.Connection) -> None:
    claim = work.claim_one(owner(work))
    with caller:
        (joined,) = record(work, caller, latest(1))
        assert work.succeed(claim).wakeups == ()
        caller.commit()
        assert ids(work.storage.triggers.dispatch(["work"])) == [joined]


def test_one_that_rolls_back_leaves_nothing_and_replaces_nothing(work: Lane, caller: psycopg.Connection) -> None:
    claim = work.claim_one(owner(work))
    held = work.trigger(latest(1)).runs[0].run_id
    with caller:
        record(work, caller, latest(2), replacing(3))
        caller.rollback()
    assert work.storage.triggers.dispatch(["work"]) == ()
    assert (work.status(claim.run_id), ids(work.succeed(claim).wakeups)) == (Status.RUNNING, [held])


@pytest.mark.parametrize("way", ["dispatch", "tick", "the end of the active run", "the next trigger"])
def test_what_was_recorded_replaces_older_successors(work: Lane, caller: psycopg.Connection, way: str) -> None:
    claim = work.claim_one(owner(work))
    held = work.trigger(latest(1)).runs[0].run_id
    with caller:
        first, last = record(work, caller, latest(2), latest(3))
        caller.commit()
    if way == "dispatch":
        assert work.storage.triggers.dispatch(["work"]) == ()
    elif way == "tick":
        assert work.storage.maintenance.fold_recorded(limit=10).count == 1
    elif way == "the next trigger":
        newest = work.trigger(latest(4)).runs[0].run_id
        assert work.status(last) is Status.CANCELLED
        last = newest
    assert ids(work.succeed(claim).wakeups) == [last]
    assert (work.status(held), work.status(first)) == (Status.CANCELLED, Status.CANCELLED)


@pytest.mark.parametrize("way", ["dispatch", "tick", "the next trigger"])
@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_recorded_cancel_stops_the_active_run_after_its_commit(work: Lane, caller: psycopg.Connection, way: str, state: str) -> None:
    active = owner(work)
    claim = work.claim_one(active) if state == "running" else None
    with caller:
        (new,) = record(work, caller, replacing(2))
        assert work.status(active).is_waiting or work.status(active) is Status.RUNNING
        caller.commit()
    if way == "dispatch":
        sent = work.storage.triggers.dispatch(["work"])
    elif way == "tick":
        sent = work.storage.maintenance.fold_recorded(limit=10).wakeups
    else:
        batch = work.trigger(latest(3))
        sent, new = batch.wakeups, batch.runs[0].run_id
    if claim is not None:
        assert (sent, work.status(active)) == ((), Status.CANCELLATION_REQUESTED)
        sent = work.succeed(claim).wakeups
    assert (ids(sent), work.status(active)) == ([new], Status.CANCELLED)


def test_a_recorded_cancel_on_another_queue_is_sent_on_its_way_by_one_call(work: Lane, caller: psycopg.Connection) -> None:
    active = owner(work)
    with caller:
        (new,) = record(work, caller, replacing(2, queue="other"))
        plain = record(work, caller, new_run("other"))
        caller.commit()
    assert set(ids(work.storage.triggers.dispatch(["other"]))) == {new, *plain}
    assert work.status(active) is Status.CANCELLED


def test_without_an_active_run_a_recorded_one_owns_the_key(work: Lane, caller: psycopg.Connection) -> None:
    with caller:
        first, second = record(work, caller, latest(1), latest(2))
        caller.commit()
    assert ids(work.storage.triggers.dispatch(["work"])) == [first]
    assert ids(work.succeed(work.claim_one(first)).wakeups) == [second]


def test_a_recorded_successor_can_be_cancelled(work: Lane, caller: psycopg.Connection) -> None:
    claim = work.claim_one(owner(work))
    with caller:
        (joined,) = record(work, caller, latest(1))
        caller.commit()
    assert work.cancel(joined)[0] is Status.CANCELLED
    assert work.succeed(claim).wakeups == ()
    assert work.storage.triggers.dispatch(["work"]) == ()


def test_the_fold_gives_way_to_whoever_holds_the_key(work: Lane, caller: psycopg.Connection) -> None:
    claim = work.claim_one(owner(work))
    with caller:
        (joined,) = record(work, caller, latest(1))
        caller.commit()
        caller.execute("SELECT 1 FROM runlane.singleton_key FOR UPDATE")
        assert work.storage.maintenance.fold_recorded(limit=10).count == 0
        caller.rollback()
    assert ids(work.succeed(claim).wakeups) == [joined]


def test_a_deferred_trigger_is_recorded_as_well(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    first, second = (work.trigger(latest(payload), eager=False).runs[0].run_id for payload in (1, 2))
    assert work.storage.triggers.dispatch(["work"]) == ()
    assert (work.status(first), ids(work.succeed(claim).wakeups)) == (Status.CANCELLED, [second])


def test_the_sql_door_knows_the_modes(work: Lane) -> None:
    claim = work.claim_one(owner(work))
    options = json.dumps({"singleton_key": "s", "singleton_mode": "latest"})
    held = work.value("SELECT runlane.trigger('noop', '1', 'work', %s::json)::text", options)
    assert ids(work.succeed(claim).wakeups) == [held]


# Who has a key.


def test_the_active_run_of_a_key_is_found_until_it_ends(work: Lane) -> None:
    runs = work.storage.runs
    active = owner(work, idempotency_key="i", payload_hash="h", idempotency_ttl=HOUR)
    work.trigger(latest())
    for keys in ({"singleton_key": "s"}, {"idempotency_key": "i"}):
        record = runs.find_owner("noop", **keys)
        assert record is not None
        assert (record.run_id, record.status) == (active, Status.QUEUED)
        assert runs.find_owner("another task", **keys) is None
    (promoted,) = work.succeed(work.claim_one(active)).wakeups
    record = runs.find_owner("noop", singleton_key="s")
    assert record is not None
    assert record.run_id == promoted.run_id
    assert runs.find_owner("noop", idempotency_key="i") is None
    current = runs.find_owner("noop", idempotency_key="i", retained=True)
    assert current is not None
    assert (current.run_id, current.status) == (active, Status.SUCCEEDED)


def test_a_failed_run_is_not_the_current_one(work: Lane) -> None:
    failed = owner(work, idempotency_key="i", payload_hash="h", idempotency_ttl=HOUR)
    work.settle(settlement(work.claim_one(failed), OutcomeKind.FAILED))
    assert work.storage.runs.find_owner("noop", idempotency_key="i", retained=True) is None
    assert work.cancel(RunId(STALE)) == (None, ())
