"""A run now takes a slot as any run does, or nothing at all."""

from __future__ import annotations

from contextlib import suppress

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import ConflictError
from runlane.domain.queue import Queue
from runlane.domain.run import Source, TriggerOutcome
from runlane.ports.operations import StartedRun
from tests.postgres.factories import LEASE, Lane, at_once, ids, new_run
from tests.postgres.invariants import highest_occupancy, queue_slots

pytestmark = pytest.mark.postgres


def run_now(storage: PostgresStorage, queue: str = "work", **options: object) -> StartedRun:
    return storage.operations.run_now(new_run(queue, source=Source.RUN_NOW, **options), lease_for=LEASE, worker="now")


def code_of(storage: PostgresStorage, **options: object) -> str:
    with pytest.raises(ConflictError) as refused:
        run_now(storage, **options)
    return refused.value.code


def test_a_run_now_is_leased_in_the_transaction_that_records_it(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    started = run_now(lane.storage, concurrency_key="k")
    assert started.claim is not None
    assert (started.run.outcome, started.claim.run_id, started.claim.attempt) == (TriggerOutcome.CREATED, started.run.run_id, 1)
    events = lane.storage.runs.list_events(started.run.run_id)
    assert [(event.type.value, event.occupied, event.actor) for event in events] == [
        ("run.created", None, None),
        ("run.dispatched", 1, None),
        ("run.claimed", None, "now"),
    ]
    assert code_of(lane.storage, concurrency_key="k") == "queue_at_capacity"
    lane.succeed(started.claim)


@pytest.mark.parametrize(
    "queue",
    [Queue("work", concurrency_limit=2), Queue("work", total_limit=2), Queue("work", concurrency_limit=5, total_limit=2)],
    ids=["limit", "total", "both"],
)
def test_no_race_takes_more_slots_than_there_are(
    lane: Lane, other_storage: PostgresStorage, third_storage: PostgresStorage, queue: Queue
) -> None:
    """Two run now and one triggers, again and again; what got a slot is settled, so that slots come and go."""
    lane.queues(queue)

    def now(storage: PostgresStorage) -> list[StartedRun]:
        started = list[StartedRun]()
        for _ in range(4):
            with suppress(ConflictError):
                started.append(run_now(storage, concurrency_key="k"))
        return started

    for _ in range(4):
        mine, theirs, batches = at_once(
            lambda: now(lane.storage),
            lambda: now(other_storage),
            lambda: [third_storage.triggers.trigger_runs([new_run("work", concurrency_key="k")], eager=True) for _ in range(3)],
        )
        claims = [one.claim for one in [*mine, *theirs] if one.claim is not None]
        assert len(claims) + sum(len(batch.wakeups) for batch in batches) <= 2
        wakeups = [*lane.succeed(*claims).wakeups, *(wakeup for batch in batches for wakeup in batch.wakeups)]
        lane.drain(wakeups)
    assert highest_occupancy(lane.connection, "work") == 2
    assert all(occupied <= 2 for _, occupied in queue_slots(lane.connection, "work"))


def test_it_does_not_pass_by_a_run_that_waits(lane: Lane) -> None:
    """The slot is free only for whom the fair order picks: a recorded run, older than the new one, gets it."""
    lane.queues(Queue("work", concurrency_limit=1, total_limit=1))
    (recorded,) = lane.trigger(new_run("work", concurrency_key="a"), eager=False).runs
    lane.storage.queues.pause("work", tenant=None, concurrency_key="a", actor=None)
    lane.storage.triggers.dispatch(["work"])
    assert code_of(lane.storage, concurrency_key="a") == "paused"
    started = run_now(lane.storage, concurrency_key="b")
    assert started.claim is not None
    lane.storage.queues.resume("work", tenant=None, concurrency_key="a", actor=None)
    assert code_of(lane.storage, concurrency_key="c") == "queue_at_capacity"
    wakeups = lane.succeed(started.claim).wakeups
    assert ids(wakeups) == [recorded.run_id]
    assert code_of(lane.storage, concurrency_key="c") == "queue_at_capacity"


def test_a_full_window_refuses(lane: Lane) -> None:
    lane.queues(Queue("work", dispatch_window=1))
    lane.trigger_one("work", concurrency_key="a")
    assert code_of(lane.storage, concurrency_key="b") == "queue_at_capacity"


def test_a_refusal_leaves_no_trace(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    lane.trigger_one("work")
    before = [
        lane.value(f"SELECT count(*) FROM runlane.{table}") for table in ("run", "event", "partition", "idempotency_key", "singleton_key")
    ]
    code_of(lane.storage, idempotency_key="i", payload_hash="h", singleton_key="s")
    after = [
        lane.value(f"SELECT count(*) FROM runlane.{table}") for table in ("run", "event", "partition", "idempotency_key", "singleton_key")
    ]
    assert after == before


def test_two_with_one_key_at_once_execute_one(lane: Lane, other_storage: PostgresStorage) -> None:
    lane.queues(Queue("work"))
    for turn in range(8):
        key = {"idempotency_key": f"i{turn}", "payload_hash": "h"} if turn % 2 else {"singleton_key": f"s{turn}"}
        answers = at_once(lambda key=key: run_now(lane.storage, **key), lambda key=key: run_now(other_storage, **key))
        assert [one.claim is not None for one in answers].count(True) == 1
        assert len({one.run.run_id for one in answers}) == 1
        lane.succeed(*(one.claim for one in answers if one.claim is not None))
