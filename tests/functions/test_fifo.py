"""The worker function behind a FIFO queue: order within a group, what is returned, and timers that come by another queue."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from runlane.domain.event import EventType
from runlane.domain.queue import Queue
from runlane.domain.retry import Fixed, Retry
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.ports.stores import Wakeup
from runlane.services.context import Context
from tests.functions.conftest import OpenWorld
from tests.functions.world import World

pytestmark = pytest.mark.postgres

main = Queue("main", default=True)
ledger = Queue("ledger")
QUEUES = [main, ledger]


@task("book", queue=ledger)
def book(number: int) -> int:
    return number


@task("plain")
def plain(number: int) -> int:
    return number


@task("flaky", queue=ledger, retry=Retry(max_attempts=3, backoff=Fixed("1m")))
def flaky(number: int, ctx: Context) -> int:
    if ctx.attempt == 1:
        raise RuntimeError("not yet")
    return number


@task("slow", queue=ledger)
def slow(number: int) -> None:
    time.sleep(0.6)


@pytest.fixture
def world(open_world: OpenWorld) -> World:
    return open_world([book, plain, flaky, slow], QUEUES, ordered=["ledger"])


def spans(world: World, wakeups: list[Wakeup]) -> list[tuple[datetime, datetime]]:
    """From claim to end, by the history, in the order of the wakeups."""
    found = []
    for wakeup in wakeups:
        at = {event.type: event.at for event in world.runlane.runs.events(wakeup.run_id)}
        found.append((at[EventType.CLAIMED], at[EventType.SUCCEEDED]))
    return found


def test_each_group_is_executed_in_order_and_groups_side_by_side(world: World) -> None:
    world.runlane.trigger_many(book, range(8))
    wakeups = world.wire.take()
    assert world.deliver_fifo(*((str(number % 2), one) for number, one in enumerate(wakeups))) == []
    for group in (wakeups[::2], wakeups[1::2]):
        assert all(ended <= claimed for (_, ended), (claimed, _) in pairwise(spans(world, group)))
    first_of_each = [spans(world, wakeups[:1])[0], spans(world, wakeups[1:2])[0]]
    assert first_of_each[0][0] == first_of_each[1][0], "claimed together"


def test_neither_does_a_fifo_delivery_go_on_inline_nor_do_others_with_its_runs(world: World) -> None:
    ordered = [result.run.run_id for result in world.runlane.trigger_many(book, range(3))]
    others = [result.run.run_id for result in world.runlane.trigger_many(plain, range(3))]
    assert world.deliver_fifo(("g", ordered[0])) == []
    assert [world.get(run_id).status for run_id in ordered] == [Status.SUCCEEDED, Status.QUEUED, Status.QUEUED]
    assert world.statuses(others) == {Status.QUEUED}
    world.deliver(others[0])
    assert world.statuses(others) == {Status.SUCCEEDED}, "goes on inline"
    assert world.statuses(ordered[1:]) == {Status.QUEUED}


def test_a_retry_yields_its_place_and_comes_back_through_the_timers_queue(world: World) -> None:
    first = world.runlane.trigger(flaky, 1).run.run_id
    second = world.runlane.trigger(book, 2).run.run_id
    world.wire.take()
    assert world.deliver_fifo(("g", first), ("g", second)) == []
    assert (world.get(first).status, world.get(second).status) == (Status.RETRYING, Status.SUCCEEDED)
    (timer,) = world.wire.delayed
    assert (timer.run_id, timer.queue, timer.hint) == (first, "ledger", True)

    world.deliver(timer)
    assert len(world.wire.delayed) == 2, "not due: it is sent again, with what is left of the delay"
    world.lane.age_timer(first)
    world.deliver(timer)
    assert world.get(first).attempt == 1, "where timers come from, nothing of a FIFO queue is executed"
    (wakeup,) = world.wire.take()
    assert (wakeup.run_id, wakeup.delay, wakeup.hint) == (first, timedelta(0), False)
    assert world.deliver_fifo(("g", wakeup)) == []
    assert (world.get(first).status, world.get(first).attempt) == (Status.SUCCEEDED, 2)


def test_a_doubled_timer_makes_one_attempt(world: World) -> None:
    run_id = world.runlane.trigger(book, 1, delay="5m").run.run_id
    (timer,) = world.wire.delayed
    world.lane.age_timer(run_id)
    world.deliver(timer, timer)
    world.deliver(timer)
    copies = world.wire.take()
    assert {one.run_id for one in copies} == {run_id}
    assert world.deliver_fifo(*(("g", one) for one in copies), ("g", copies[0])) == []
    assert world.lane.events(run_id).count("run.claimed") == 1


def test_what_does_not_start_in_time_comes_again_in_its_order(world: World) -> None:
    world.runlane.trigger(slow, 0)
    world.runlane.trigger_many(book, range(3))
    wakeups = world.wire.take()
    records = [("g", wakeups[0]), ("g", wakeups[1]), ("other", wakeups[2]), ("g", wakeups[3])]
    assert world.deliver_fifo(*records, seconds=1.0) == [1, 3]
    assert [world.get(one.run_id).status for one in wakeups] == [Status.SUCCEEDED, Status.QUEUED, Status.SUCCEEDED, Status.QUEUED]
    assert world.wire.take() == [], "their messages are still there, so no others are made"
    assert world.deliver_fifo(records[1], records[3]) == []
    (_, first_ended), (second_claimed, _) = spans(world, [wakeups[1], wakeups[3]])
    assert first_ended <= second_claimed
    assert {world.get(one.run_id).attempt for one in wakeups} == {1}


def test_a_run_handed_back_starts_at_its_returned_message_and_not_again_at_its_new_one(open_world: OpenWorld) -> None:
    world = open_world([book, slow], QUEUES, ordered=["ledger"], worker_concurrency=1)
    world.runlane.trigger(slow, 0)
    run_id = world.runlane.trigger(book, 1).run.run_id
    wakeups = world.wire.take()
    assert world.deliver_fifo(("a", wakeups[0]), ("b", wakeups[1]), seconds=1.0) == [1]
    (again,) = world.wire.take()
    assert again.run_id == run_id
    assert world.deliver_fifo(("b", wakeups[1]), ("b", again)) == []
    assert (world.get(run_id).status, world.lane.events(run_id).count("run.succeeded")) == (Status.SUCCEEDED, 1)


def test_behind_a_misfit_its_own_group_comes_again(world: World) -> None:
    runs = [result.run.run_id for result in world.runlane.trigger_many(book, range(3))]
    assert world.deliver_fifo(("a", runs[0]), ("a", "no json"), ("b", runs[1]), ("a", runs[2])) == [1, 3]
    assert [world.get(run_id).status for run_id in runs] == [Status.SUCCEEDED, Status.SUCCEEDED, Status.QUEUED]


def test_a_run_that_another_worker_has_leased_holds_its_group_until_the_lease_expires(world: World) -> None:
    runs = [result.run.run_id for result in world.runlane.trigger_many(book, range(2))]
    world.lane.claim_one(runs[0])
    assert world.deliver_fifo(("g", runs[0]), ("g", runs[1])) == [0, 1]
    world.lane.age_lease(runs[0])
    assert world.deliver_fifo(("g", runs[0]), ("g", runs[1])) == []
    assert (world.get(runs[0]).status, world.get(runs[1]).status) == (Status.RETRYING, Status.SUCCEEDED)


def test_a_wakeup_from_before_the_queue_was_bound_to_fifo_is_published_there(world: World) -> None:
    run_id = world.runlane.trigger(book, 1).run.run_id
    (old,) = world.wire.take()
    world.deliver(old)
    (new,) = world.wire.take()
    assert (new.run_id, world.get(run_id).status) == (run_id, Status.QUEUED)
    assert world.deliver_fifo(("g", new)) == []
    assert world.get(run_id).status is Status.SUCCEEDED
