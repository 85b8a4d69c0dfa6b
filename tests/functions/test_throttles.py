"""Throttled queues through the real handlers: turns are held in the worker, sleepers come back by their hint, nobody passes by."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from runlane.domain.errors import ConflictError
from runlane.domain.queue import Queue, Throttle
from runlane.domain.run import Status
from runlane.domain.task import task
from tests.functions.conftest import OpenWorld
from tests.functions.world import World

BOTH = pytest.mark.parametrize("major", [18, 15])
SECOND = timedelta(seconds=1)
FAST = Queue("main", default=True, throttle=Throttle(50, "1s", burst=5))
SLOW = Queue("main", default=True, throttle=Throttle(1, "1m"))


@task("noop")
def noop(number: int) -> int:
    return number


def trigger_many(world: World, count: int) -> list[str]:
    return [result.run.run_id for result in world.runlane.trigger_many(noop, range(count))]


def starts(world: World) -> list[datetime]:
    rows = world.lane.connection.execute("SELECT at FROM runlane.event WHERE type = 'run.claimed' ORDER BY at").fetchall()
    return [at for (at,) in rows]


def most(found: list[datetime]) -> int:
    return max(sum(start <= other < start + SECOND for other in found) for start in found)


@BOTH
def test_turns_within_the_second_are_held_by_the_worker_that_was_woken(open_world: OpenWorld) -> None:
    world = open_world([noop], [FAST])
    runs = trigger_many(world, 20)
    assert not world.wire.delayed
    world.deliver_sent()
    assert world.statuses(runs) == {Status.SUCCEEDED}
    found = starts(world)
    # Six at once, and fourteen a step after the other.
    assert found[-1] - found[0] >= SECOND * 1.025 / 50 * 14 - timedelta(milliseconds=25)
    assert most(found) <= 55


@BOTH
def test_a_sleeping_run_comes_back_by_its_hint_and_not_before(open_world: OpenWorld) -> None:
    world = open_world([noop], [SLOW])
    first, second = trigger_many(world, 2)
    world.deliver_sent()
    assert (world.get(first).status, world.get(second).status) == (Status.SUCCEEDED, Status.QUEUED)
    (hint,) = world.wire.delayed
    assert (hint.run_id, hint.hint) == (second, True)
    world.deliver(second)
    world.tick()
    assert world.get(second).status is Status.QUEUED
    assert world.runlane.queues.stats("main")[0].blocked == {"throttled": 1}
    pass_a_minute(world)
    world.deliver(second)
    assert world.get(second).status is Status.SUCCEEDED


@BOTH
def test_a_tick_finds_the_sleeper_whose_hint_was_lost(open_world: OpenWorld) -> None:
    world = open_world([noop], [SLOW])
    runs = trigger_many(world, 2)
    world.deliver_sent()
    pass_a_minute(world)
    world.tick()
    world.deliver_sent()
    assert world.statuses(runs) == {Status.SUCCEEDED}


def test_a_run_now_beyond_the_throttle_is_refused(open_world: OpenWorld) -> None:
    world = open_world([noop], [SLOW])
    assert world.runlane.run_now(noop, 1).result == 1
    with pytest.raises(ConflictError) as error:
        world.runlane.run_now(noop, 2)
    assert (error.value.code, error.value.retryable) == ("throttled", True)
    assert "main" in error.value.message


def test_a_draining_worker_waits_for_the_turns(open_world: OpenWorld) -> None:
    world = open_world([noop], [FAST])
    runs = trigger_many(world, 20)
    world.runlane.worker("drain").wait()
    assert world.statuses(runs) == {Status.SUCCEEDED}
    assert most(starts(world)) <= 55


def pass_a_minute(world: World) -> None:
    """By all that the throttle, and the history, know of the time."""
    world.lane.connection.execute(
        b"UPDATE runlane.partition SET throttle_clock = throttle_clock - interval '61 s', ready_at = ready_at - interval '61 s'"
    )
    world.lane.connection.execute(b"UPDATE runlane.event SET at = at - interval '61 s'")
