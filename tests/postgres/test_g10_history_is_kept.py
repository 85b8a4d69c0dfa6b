"""G10: every transition is an event with actor, time and sequence, written in the transaction of the state."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from runlane.domain.event import EventType
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from tests.postgres.factories import FAILURE, Lane, new_run, settlement

pytestmark = pytest.mark.postgres
ZERO = timedelta(0)


def a_life(lane: Lane) -> str:
    """Everything that can happen to one run, but its end."""
    run_id = lane.trigger_one("work", actor="ann")
    lane.age_dispatch(run_id)
    lane.storage.maintenance.expire_dispatches(limit=10)
    lane.settle(settlement(lane.claim(run_id, worker="w1").claims[0], OutcomeKind.RETRY, delay=ZERO))
    lane.settle(settlement(lane.claim(run_id, worker="w2").claims[0], OutcomeKind.RELEASED, delay=ZERO, reason="not ready"))
    lane.settle(settlement(lane.claim(run_id, worker="w3").claims[0], OutcomeKind.HANDED_BACK, delay=ZERO, reason="not_started"))
    lost = lane.claim(run_id, worker="w4").claims[0]
    lane.age_lease(run_id)
    lane.settle(settlement(lost, OutcomeKind.LEASE_EXPIRED, delay=ZERO))
    lane.succeed(lost)
    lane.claim(run_id, worker="w5")
    lane.storage.runs.cancel_run(run_id, actor="bob", reason="enough")
    return run_id


LIFE = [
    "created", "dispatched", "dispatch_expired", "dispatched", "claimed", "retry_scheduled", "dispatched", "claimed", "released",
    "dispatched", "claimed", "rescheduled", "dispatched", "claimed", "lease_expired", "retry_scheduled",
]  # fmt: skip


@pytest.mark.parametrize("limit", [None, 1], ids=["unlimited", "limit1"])
def test_a_life_is_told_in_full_and_in_order(lane: Lane, limit: int | None) -> None:
    lane.queues(Queue("work", concurrency_limit=limit))
    run_id = a_life(lane)
    events = lane.storage.runs.list_events(run_id)
    told = [event.type.value.removeprefix("run.") for event in events]
    assert told[: len(LIFE)] == LIFE
    assert sorted(told[len(LIFE) :]) == ["cancellation_requested", "claimed", "dispatched", "result_refused"]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.at for event in events] == sorted(event.at for event in events)
    actors = {(event.type, event.actor) for event in events if event.actor}
    assert {
        (EventType.CREATED, "ann"),
        (EventType.CANCELLATION_REQUESTED, "bob"),
        (EventType.CLAIMED, "w1"),
        (EventType.CLAIMED, "w5"),
    } <= actors


@pytest.mark.parametrize("limit", [None, 1], ids=["unlimited", "limit1"])
def test_attempts_are_read_from_history(lane: Lane, limit: int | None) -> None:
    lane.queues(Queue("work", concurrency_limit=limit))
    run_id = a_life(lane)
    attempts = lane.storage.runs.list_attempts(run_id)
    assert [(attempt.attempt, attempt.worker, attempt.outcome) for attempt in attempts] == [
        (1, "w1", EventType.RETRY_SCHEDULED),
        (2, "w2", EventType.RELEASED),
        (3, "w4", EventType.LEASE_EXPIRED),
        (4, "w5", None),
    ]
    assert attempts[0].failure == FAILURE


def test_events_that_move_a_slot_say_what_became_of_the_occupancy(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=2, total_limit=3))
    batch = lane.trigger(*[new_run("work", concurrency_key="k")] * 3)
    lane.drain(batch.wakeups, size=1)
    slots = lane.connection.execute(
        "SELECT type, slot_seq, occupied, queue_slot_seq, queue_occupied FROM runlane.event WHERE slot_seq IS NOT NULL ORDER BY slot_seq"
    ).fetchall()
    taken, given = "run.dispatched", "run.succeeded"
    assert slots == [
        (taken, 1, 1, 1, 1), (taken, 2, 2, 2, 2), (given, 3, 1, 3, 1), (taken, 4, 2, 4, 2), (given, 5, 1, 5, 1), (given, 6, 0, 6, 0),
    ]  # fmt: skip


def test_events_of_an_unlimited_queue_carry_no_slot(lane: Lane) -> None:
    lane.queues(Queue("work"))
    a_life(lane)
    assert lane.value("SELECT count(*) FROM runlane.event WHERE slot_seq IS NOT NULL OR queue_slot_seq IS NOT NULL") == 0


def test_a_transition_that_rolls_back_leaves_no_event(lane: Lane, dsn: str) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    run_id = lane.trigger_one("work")
    before = lane.events(run_id)
    with psycopg.connect(dsn) as caller:
        caller.execute("SELECT * FROM runlane.claim_runs_v1(%s::uuid[], '1 minute', 'w')", ([run_id],)).fetchall()
        caller.execute("SELECT * FROM runlane.cancel_run_v1(%s, 'ann', NULL)", (run_id,)).fetchall()
        caller.rollback()
    assert lane.events(run_id) == before


def test_a_pause_tells_why_a_dispatch_went_back(lane: Lane) -> None:
    lane.queues(Queue("work"))
    run_id = lane.trigger_one("work")
    lane.storage.queues.pause("work", tenant=None, concurrency_key=None, actor="ann")
    last = lane.storage.runs.list_events(run_id)[-1]
    assert (last.type, last.data) == (EventType.DISPATCH_EXPIRED, {"reason": "paused"})


def test_a_failure_and_its_reasons_are_in_the_event(lane: Lane) -> None:
    lane.queues(Queue("work"))
    claim = lane.claim_one(lane.trigger_one("work"))
    lane.settle(settlement(claim, OutcomeKind.FAILED))
    last = lane.storage.runs.list_events(claim.run_id)[-1]
    assert last.data is not None
    assert last.data["failure"] == {"code": FAILURE.code, "type": FAILURE.type, "message": FAILURE.message}
