from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from runlane.domain.errors import ConflictError, ContractError
from runlane.domain.ids import RunId
from runlane.domain.retry import Retry
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.services.context import Context, Release
from tests.functions.conftest import OpenWorld
from tests.functions.world import World
from tests.waiting import until


def cancelled_while_running(world: World, run_id: RunId) -> float:
    """Deliver, cancel once it runs, wait for the end; the seconds from the request to the end."""
    invocation = threading.Thread(target=world.deliver, args=world.wire.take())
    invocation.start()
    until(lambda: world.get(run_id).status is Status.RUNNING)
    assert world.runlane.runs.cancel(run_id, actor="ann", reason="asked") is Status.CANCELLATION_REQUESTED
    requested_at = time.monotonic()
    invocation.join(60)
    return time.monotonic() - requested_at


@task("watching")
def watching(number: int, ctx: Context) -> str:
    while not ctx.is_cancellation_requested():
        time.sleep(0.01)
    return "what was done until then"


@pytest.mark.slow
def test_a_handler_learns_of_it_within_5_seconds(open_world: OpenWorld) -> None:
    world = open_world([watching])
    run_id = world.runlane.trigger(watching, 1).run.run_id
    # Beats are 20 s apart; a slow machine may make 5 s twice as long.
    assert cancelled_while_running(world, run_id) < 12
    record = world.get(run_id)
    assert (record.status, record.result) == (Status.CANCELLED, "what was done until then")


def checks(number: int, ctx: Context) -> None:
    while True:
        ctx.check()
        time.sleep(0.01)


async def checks_async(number: int, ctx: Context) -> None:
    while True:
        ctx.check()
        await asyncio.sleep(0.01)


def releases(number: int, ctx: Context) -> Release:
    while not ctx.is_cancellation_requested():
        time.sleep(0.01)
    return ctx.release("1h")


def raises(number: int, ctx: Context) -> None:
    while not ctx.is_cancellation_requested():
        time.sleep(0.01)
    raise ValueError("torn")


@pytest.mark.parametrize(
    ("handler", "status"),
    [(checks, Status.CANCELLED), (checks_async, Status.CANCELLED), (releases, Status.CANCELLED), (raises, Status.FAILED)],
)
def test_what_an_asked_attempt_does_decides_how_it_ends(open_world: OpenWorld, handler: Callable[..., object], status: Status) -> None:
    asked = task("asked", retry=Retry(max_attempts=5))(handler)
    world = open_world([asked], lease_duration="600ms")
    run_id = world.runlane.trigger(asked, 1).run.run_id
    cancelled_while_running(world, run_id)
    assert world.get(run_id).status is status
    assert world.lane.events(run_id).count("run.cancellation_requested") == 1


def test_cancelling_twice_is_one_cancellation(open_world: OpenWorld) -> None:
    world = open_world([watching])
    run_id = world.runlane.trigger(watching, 1, delay="1h").run.run_id
    assert world.runlane.runs.cancel(run_id) is Status.CANCELLED
    assert world.runlane.runs.cancel(run_id) is Status.CANCELLED
    assert world.lane.events(run_id).count("run.cancelled") == 1
    with pytest.raises(ConflictError):
        world.runlane.runs.wait(world.runlane.trigger(watching, 2, delay="1h").run.run_id, "0s")


def test_a_long_attempt_keeps_its_lease(open_world: OpenWorld) -> None:
    @task("long")
    def long(number: int) -> str:
        time.sleep(3.2)
        return "done"

    world = open_world([long], lease_duration="3s")
    run_id = world.runlane.trigger(long, 1).run.run_id
    invocation = threading.Thread(target=world.deliver, args=world.wire.take())
    invocation.start()
    while invocation.is_alive():
        world.tick()
        invocation.join(0.1)
    record = world.get(run_id)
    assert (record.status, record.attempt, record.result) == (Status.SUCCEEDED, 1, "done")


def test_start_and_finish_time_outs(open_world: OpenWorld) -> None:
    @task("late", start_timeout="1h")
    def late(number: int) -> None: ...

    @task("long", finish_timeout="1h")
    def long(number: int, ctx: Context) -> None:
        while True:
            ctx.check()
            time.sleep(0.01)

    world = open_world([late, long], lease_duration="3s")
    waiting = world.runlane.trigger(late, 1, delay="2h").run.run_id
    running = world.runlane.trigger(long, 1).run.run_id
    invocation = threading.Thread(target=world.deliver, args=world.wire.take())
    invocation.start()
    until(lambda: world.get(running).status is Status.RUNNING)
    world.lane.age_deadlines()
    world.tick()
    invocation.join(60)
    assert world.statuses([waiting, running]) == {Status.CANCELLED}


def test_whatever_is_given_as_a_reason_can_be_stored_and_an_actor_is_a_key(open_world: OpenWorld) -> None:
    world = open_world([watching])
    run_id = world.runlane.trigger(watching, 1, delay="1h").run.run_id
    for move in (partial(world.runlane.runs.cancel, run_id), partial(world.runlane.queues.pause, "main")):
        with pytest.raises(ContractError, match="actor"):
            move(actor="a\x00")
    assert world.runlane.runs.cancel(run_id, reason="a\x00b" + "\ud800" + "x" * 5000) is Status.CANCELLED
