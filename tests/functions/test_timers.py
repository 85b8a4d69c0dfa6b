"""Runs that are due in a moment or in a while, by the real handlers: never early, once each, and hinted by whoever made them wait."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from runlane.domain.ids import RunId
from runlane.domain.retry import Fixed, Retry
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.services.context import Context, Release
from tests.functions.conftest import OpenWorld
from tests.functions.world import World

OK = {"batchItemFailures": []}
SECOND = timedelta(seconds=1)
LONG = timedelta(minutes=1)
"""No stall of a machine lasts that long, and a clock that is minutes off would show."""


@task("noop")
def noop(number: int) -> int:
    return number


@task("failing", retry=Retry(max_attempts=2, backoff=Fixed("5m")))
def failing(number: int) -> None:
    raise RuntimeError("not yet")


@task("waiting")
def waiting(number: int, ctx: Context) -> Release | None:
    return ctx.release("5m") if ctx.attempt == 1 else None


@pytest.fixture
def world(open_world: OpenWorld) -> World:
    return open_world([noop, failing, waiting])


def lateness(world: World, run_id: RunId) -> timedelta:
    """By the database's clock; there is one attempt."""
    (attempt,) = world.runlane.runs.attempts(run_id)
    found: timedelta = attempt.claimed_at - world.get(run_id).due_at
    return found


@pytest.mark.parametrize("off", [-300, 300], ids=["behind", "ahead"])
def test_a_worker_whose_clock_is_minutes_off_starts_nothing_early_and_holds_nothing_for_minutes(
    world: World, monkeypatch: pytest.MonkeyPatch, off: int
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + off)
    run_id = world.runlane.trigger(noop, 1, delay="400ms").run.run_id
    world.deliver_sent()
    assert timedelta(0) <= lateness(world, run_id) < LONG


def test_a_hint_a_minute_early_is_sent_again_for_what_is_left(world: World) -> None:
    run_id = world.runlane.trigger(noop, 1, delay="1m").run.run_id
    (hint,) = world.wire.delayed
    assert world.deliver(hint) == OK
    again = world.wire.delayed[1]
    assert (again.run_id, again.hint) == (run_id, True)
    assert again.delay <= hint.delay
    assert world.get(run_id).status is Status.SCHEDULED


def test_a_doubled_hint_makes_one_attempt_in_one_invocation_and_in_two(world: World) -> None:
    world.runlane.trigger_many(noop, range(4), delay="500ms")
    hints = world.wire.take()
    both = [threading.Thread(target=world.deliver, args=(*hints, *hints)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(20)
    assert all(timedelta(0) <= lateness(world, hint.run_id) for hint in hints)
    assert world.statuses(hint.run_id for hint in hints) == {Status.SUCCEEDED}


def test_a_lost_hint_is_made_good_by_the_tick_that_follows(world: World) -> None:
    run_id = world.runlane.trigger(noop, 1, delay="5m").run.run_id
    world.wire.delayed.clear()
    world.tick()
    assert not world.wire.delayed
    world.lane.age_timer(run_id)
    world.tick()
    world.deliver_sent()
    assert lateness(world, run_id) >= timedelta(0)


@pytest.mark.parametrize("waits", [failing, waiting], ids=["retry", "release"])
def test_a_run_that_waits_is_hinted_by_the_invocation_that_made_it_wait(world: World, waits: object) -> None:
    run_id = world.runlane.trigger(waits, 1).run.run_id
    world.deliver_sent()
    (hint,) = world.wire.delayed
    assert (hint.run_id, hint.hint, hint.delay) == (run_id, True, timedelta(minutes=5))
    world.lane.age_timer(run_id)
    assert world.deliver(hint) == OK
    assert world.get(run_id).attempt == 2


def test_a_run_that_joins_a_transaction_is_hinted_after_the_commit(world: World, dsn: str) -> None:
    with psycopg.connect(dsn) as caller, world.runlane.transaction(caller) as tx:
        run_id = tx.trigger(noop, 1, delay="90s").run.run_id
        assert not world.wire.delayed
    (hint,) = world.wire.delayed
    assert (hint.run_id, hint.hint, hint.delay <= timedelta(seconds=90)) == (run_id, True, True)
    world.tick()
    assert len(world.wire.delayed) == 1


def test_a_hint_of_a_run_that_was_cancelled_starts_nothing(world: World) -> None:
    run_id = world.runlane.trigger(noop, 1, delay="5m").run.run_id
    world.runlane.runs.cancel(run_id)
    assert world.deliver(*world.wire.delayed) == OK
    world.tick()
    assert (world.get(run_id).status, len(world.wire.delayed), len(world.wire.sent)) == (Status.CANCELLED, 1, 0)
    assert "run.claimed" not in world.lane.events(run_id)


@pytest.mark.parametrize(("first", "then"), [("1m", "10m"), ("10m", "1m")], ids=["later", "sooner"])
def test_a_run_that_was_moved_starts_once_at_its_new_time_whichever_hint_comes(world: World, first: str, then: str) -> None:
    run_id = world.runlane.trigger(noop, 1, delay=first).run.run_id
    world.runlane.runs.reschedule(run_id, datetime.now(UTC) + timedelta(minutes=int(then[:-1])))
    old, new = world.wire.delayed
    assert world.deliver(old, new) == OK
    assert world.get(run_id).status is Status.SCHEDULED
    assert all(one.delay <= timedelta(minutes=int(then[:-1])) for one in world.wire.delayed[1:])
    world.lane.age_timer(run_id)
    assert world.deliver(new, old) == OK
    assert world.deliver(*world.wire.delayed) == OK
    assert lateness(world, run_id) >= timedelta(0)
    assert world.lane.events(run_id).count("run.claimed") == 1
