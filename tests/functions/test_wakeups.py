"""A wakeup decides nothing: lost, doubled, reordered, early, or for a run that is none, it leads to one attempt at most."""

from __future__ import annotations

import random
import threading
import time
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from runlane.domain.ids import RunId
from runlane.domain.queue import Queue
from runlane.domain.retry import Fixed, Retry
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.services.context import Context
from tests.functions.conftest import OpenWorld
from tests.functions.world import envelope
from tests.waiting import until

BOTH = pytest.mark.parametrize("major", [18, 15])
OK = {"batchItemFailures": []}
limited = Queue("main", default=True, concurrency_limit=2)


@task("noop", concurrency_key=lambda number: str(number % 3))
def noop(number: int) -> int:
    return number


@BOTH
@pytest.mark.parametrize("copies", [0, 1, 2, 3])
@pytest.mark.parametrize("queue", [Queue("main", default=True), limited], ids=["unlimited", "limited"])
def test_any_number_of_copies_in_any_order_makes_one_attempt_each(open_world: OpenWorld, copies: int, queue: Queue) -> None:
    world = open_world([noop], [queue])
    runs = [result.run.run_id for result in world.runlane.trigger_many(noop, range(12))]
    while world.wire.sent:
        messages = [wakeup for wakeup in world.wire.take() for _ in range(copies)]
        random.Random(copies).shuffle(messages)
        for start in range(0, len(messages), 10):
            assert world.deliver(*messages[start : start + 10]) == OK
    if not copies:
        world.lane.age_dispatch(*runs)
        for _ in range(8):
            world.tick()
            world.deliver_sent()
    assert world.statuses(runs) == {Status.SUCCEEDED}
    for run_id in runs:
        assert world.lane.events(run_id).count("run.claimed") == 1


@pytest.mark.parametrize("copies", [0, 1, 2, 3])
def test_any_number_of_copies_of_a_hint_makes_one_attempt_each(open_world: OpenWorld, copies: int) -> None:
    world = open_world([noop])
    runs = [world.runlane.trigger(noop, number, delay="60s").run.run_id for number in range(9)]
    hints = [hint for hint in world.wire.delayed for _ in range(copies)]
    assert len(hints) == copies * len(runs)
    for run_id in runs:
        world.lane.age_timer(run_id)
    random.Random(copies).shuffle(hints)
    for start in range(0, len(hints), 10):
        assert world.deliver(*hints[start : start + 10]) == OK
        world.deliver_sent()
    if not copies:
        world.tick()
        world.deliver_sent()
    assert world.statuses(runs) == {Status.SUCCEEDED}
    for run_id in runs:
        assert world.lane.events(run_id).count("run.claimed") == 1


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_any_number_of_copies_in_a_message_group_makes_one_attempt_each(open_world: OpenWorld, copies: int) -> None:
    world = open_world([noop], ordered=["main"])
    runs = [result.run.run_id for result in world.runlane.trigger_many(noop, range(9))]
    while world.wire.sent:
        records = [(one.concurrency_key or "", one) for one in world.wire.take() for _ in range(copies)]
        for start in range(0, len(records), 10):
            assert world.deliver_fifo(*records[start : start + 10]) == []
    assert world.statuses(runs) == {Status.SUCCEEDED}
    for run_id in runs:
        assert world.lane.events(run_id).count("run.claimed") == 1


def test_copies_delivered_to_two_invocations_at_once_make_one_attempt_each(open_world: OpenWorld) -> None:
    inside, gate = threading.Semaphore(0), threading.Event()

    @task("slow")
    def slow(number: int) -> None:
        inside.release()
        gate.wait(60)

    world = open_world([slow])
    world.runlane.trigger_many(slow, range(3))
    wakeups = world.wire.take()
    first = threading.Thread(target=world.deliver, args=wakeups)
    first.start()
    for _ in wakeups:
        assert inside.acquire(timeout=60)
    assert world.deliver(*reversed(wakeups)) == OK
    gate.set()
    first.join(60)
    assert not inside.acquire(blocking=False)
    assert world.statuses(wakeup.run_id for wakeup in wakeups) == {Status.SUCCEEDED}


def test_wakeups_of_ended_unknown_and_foreign_runs_change_nothing(open_world: OpenWorld) -> None:
    world = open_world([noop])
    done, cancelled = (world.runlane.trigger(noop, 1).run.run_id for _ in range(2))
    world.runlane.runs.cancel(cancelled)
    world.deliver_sent()
    before = {run_id: world.runlane.runs.events(run_id) for run_id in (done, cancelled)}
    unknown = RunId(str(uuid4()))
    foreign = envelope(done, environment="staging")
    answer = world.deliver(done, cancelled, unknown, done)
    assert answer == OK
    assert len(world.deliver(done, foreign)["batchItemFailures"]) == 1
    assert {run_id: world.runlane.runs.events(run_id) for run_id in (done, cancelled)} == before
    assert (world.get(done).status, world.get(cancelled).status) == (Status.SUCCEEDED, Status.CANCELLED)


def test_wakeups_of_an_earlier_attempt_start_the_later_one_once_and_those_of_a_pruned_run_nothing(
    open_world: OpenWorld,
) -> None:
    @task("twice", retry=Retry(max_attempts=3, backoff=Fixed("1h")))
    def twice(number: int, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")

    world = open_world([twice])
    run_id = world.runlane.trigger(twice, 1).run.run_id
    first = world.wire.take()
    world.deliver(*first)
    assert world.deliver(*first, *first) == OK
    assert world.get(run_id).status is Status.RETRYING, "its old wakeup comes before it is due"
    world.lane.age_timer(run_id)
    assert world.deliver(*first, *first) == OK
    assert world.lane.events(run_id).count("run.claimed") == 2
    assert world.get(run_id).status is Status.SUCCEEDED
    assert world.runlane.runs.prune(older_than="0s").done == 1
    assert world.deliver(*first) == OK
    assert world.count("run") == 0


def test_stored_meta_that_cannot_be_read_keeps_no_neighbour_from_starting(open_world: OpenWorld) -> None:
    world = open_world([noop])
    runs = [result.run.run_id for result in world.runlane.trigger_many(noop, range(5))]
    deep = "[" * 5000 + "]" * 5000
    world.lane.connection.execute(
        "UPDATE runlane.run SET meta = %s::json, trace = %s::json WHERE run_id = %s", (f'{{"a":{"9" * 5000}}}', f'{{"a":{deep}}}', runs[0])
    )
    world.lane.connection.execute("UPDATE runlane.run SET payload = %s::json WHERE run_id = %s", (deep, runs[1]))
    assert world.deliver(*world.wire.take()) == OK
    assert [world.get(run_id).status for run_id in runs] == [Status.SUCCEEDED, Status.FAILED, *[Status.SUCCEEDED] * 3]
    assert world.get(runs[1]).payload == deep


@pytest.mark.parametrize(
    "body",
    ["", "null", "{}", "[]", "no json", '{"message":{},"type":"runlane.wakeup","version":1}', "\x00", '"' + "x" * 300_000 + '"'],
    ids=["empty", "null", "object", "list", "text", "hollow", "nul", "huge"],
)
def test_a_misfit_fails_alone(open_world: OpenWorld, body: str) -> None:
    world = open_world([noop])
    run_id = world.runlane.trigger(noop, 1).run.run_id
    assert len(world.deliver(body, run_id, body)["batchItemFailures"]) == 2
    assert world.get(run_id).status is Status.SUCCEEDED


def test_observers_see_failed_messages_and_cannot_break_the_batch(open_world: OpenWorld) -> None:
    seen: list[str] = []

    def observe(message_id: str, error: Exception) -> None:
        seen.append(getattr(error, "code", ""))
        raise RuntimeError("a broken observer")

    world = open_world([noop], on_delivery_failure=[observe])
    run_id = world.runlane.trigger(noop, 1).run.run_id
    answer = world.deliver("no json", envelope(run_id, environment="staging"), run_id)
    assert len(answer["batchItemFailures"]) == 2
    assert seen == ["envelope_invalid", "environment_foreign"]
    assert world.get(run_id).status is Status.SUCCEEDED


@BOTH
def test_a_wakeup_up_to_a_second_early_is_held_until_due_outside_the_slots(open_world: OpenWorld) -> None:
    started: dict[int, datetime] = {}

    @task("timed")
    def timed(number: int) -> None:
        started[number] = datetime.now().astimezone()

    world = open_world([timed], worker_concurrency=1)
    early = [world.runlane.trigger(timed, number, delay="900ms").run for number in range(3)]
    now = world.runlane.trigger(timed, 9).run
    assert world.deliver(*(run.run_id for run in early), now.run_id) == OK
    assert world.statuses([now.run_id, *(run.run_id for run in early)]) == {Status.SUCCEEDED}
    for number, run in enumerate(early):
        assert started[number] >= run.due_at, "never before its due time"
        claimed = next(event.at for event in world.runlane.runs.events(run.run_id) if event.type == "run.claimed")
        assert claimed >= run.due_at
    came_early = next(event.at for event in world.runlane.runs.events(now.run_id) if event.type == "run.claimed") < early[0].due_at
    assert not came_early or started[9] < min(started[number] for number in range(3)), "what is held takes no place of what can start"


def test_a_wakeup_much_too_early_is_sent_again_with_a_delay(open_world: OpenWorld) -> None:
    world = open_world([noop])
    run = world.runlane.trigger(noop, 1, delay="5m").run
    world.wire.delayed.clear()
    assert world.deliver(run.run_id) == OK
    assert world.get(run.run_id).status is Status.SCHEDULED
    (hint,) = world.wire.delayed
    assert (hint.run_id, hint.hint) == (run.run_id, True)
    assert timedelta(minutes=4, seconds=50) < hint.delay <= timedelta(minutes=5)


def test_a_held_wakeup_that_outlives_its_invocation_is_recovered_by_a_tick(open_world: OpenWorld) -> None:
    """Too little time is left to hold it, so it is not held; nothing starts early, and nothing is lost."""
    world = open_world([noop])

    def is_left() -> bool:
        began = time.monotonic()
        run = world.runlane.trigger(noop, 1, delay="900ms").run
        world.deliver(run.run_id, seconds=0.4)
        return time.monotonic() - began < 0.9

    # Once in a while the machine itself may take longer than the delay.
    assert any(is_left() for _ in range(5))
    run = world.runlane.runs.list(limit=1).data[0]
    until(lambda: bool(world.value("SELECT due_at <= clock_timestamp() FROM runlane.timer WHERE run_id = %s", run.run_id)))
    world.tick()
    world.deliver_sent()
    assert world.get(run.run_id).status is Status.SUCCEEDED


def test_a_wakeup_of_a_run_without_capacity_takes_what_the_fair_order_picks(open_world: OpenWorld) -> None:
    """An expired dispatch went back into the order: its late wakeup asks for a dispatch, and runs whatever is first."""
    world = open_world([noop], [Queue("main", default=True, concurrency_limit=1)])
    first, second = (world.runlane.trigger(noop, 0).run.run_id for _ in range(2))
    world.wire.take()
    assert world.deliver(second) == OK
    assert world.get(second).status is Status.QUEUED, "the first one holds the only slot"
    world.deliver(first)
    assert world.statuses([first, second]) == {Status.SUCCEEDED}


def test_a_claim_that_meets_an_expired_lease_recovers_it_in_place(open_world: OpenWorld) -> None:
    world = open_world([noop])
    run_id = world.runlane.trigger(noop, 1).run.run_id
    world.lane.claim_one(run_id)
    assert world.deliver(run_id) == OK
    assert world.get(run_id).status is Status.RUNNING, "its lease is in force"
    world.lane.age_lease(run_id)
    assert world.deliver(run_id) == OK
    record = world.get(run_id)
    assert (record.status, record.attempt, record.failures) == (Status.RETRYING, 1, 1)
    world.make_due(run_id)
    assert (world.get(run_id).status, world.get(run_id).attempt) == (Status.SUCCEEDED, 2)
