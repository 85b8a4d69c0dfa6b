"""Publishing fails, or its process dies, at every point: ticks end everything all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import UnavailableError
from runlane.domain.ids import RunId
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.ports.stores import PublishMark, PublishResult, Wakeup
from tests.functions.conftest import OpenWorld
from tests.functions.world import World

BOTH = pytest.mark.parametrize("major", [18, 15])
main = Queue("main", default=True)
one_at_a_time = Queue("main", default=True, concurrency_limit=1)


@task("noop")
def noop(number: int) -> int:
    return number


class Died(BaseException):
    """The process ends here: nothing after it in the same call happens."""


def refuse_all(world: World) -> None:
    world.wire.refuses = lambda wakeup: True


def refuse_every_other(world: World) -> None:
    turns = iter(range(10**6))
    world.wire.refuses = lambda wakeup: next(turns) % 2 == 0


def break_transport(world: World) -> None:
    world.wire.breaks = RuntimeError("the transport breaks its promise")


def mend(world: World) -> None:
    world.wire.refuses = lambda wakeup: False
    world.wire.breaks = None


FAULTS = pytest.mark.parametrize("fail", [refuse_all, refuse_every_other, break_transport])


def finish_with_ticks(world: World, run_ids: Sequence[RunId]) -> None:
    """Nothing but ticks, and deliveries of what they publish."""
    for _ in range(len(run_ids) + 2):
        world.lane.age_publication(*run_ids)
        assert world.tick()["failed"] == []
        world.deliver_sent()
    assert world.statuses(run_ids) == {Status.SUCCEEDED}
    for run_id in run_ids:
        assert world.lane.events(run_id).count("run.claimed") == 1


@BOTH
@FAULTS
def test_at_trigger(open_world: OpenWorld, fail: Callable[[World], None]) -> None:
    world = open_world([noop])
    fail(world)
    runs = [result.run.run_id for result in world.runlane.trigger_many(noop, range(6))]
    world.wire.take()
    mend(world)
    finish_with_ticks(world, runs)


@FAULTS
def test_at_the_hand_over_of_a_settle(open_world: OpenWorld, fail: Callable[[World], None]) -> None:
    """Without inline continuation every freed slot goes on by a wakeup; the first one is lost."""
    world = open_world([noop], [one_at_a_time], continue_inline_for="0s")
    runs = [result.run.run_id for result in world.runlane.trigger_many(noop, range(4))]
    (first,) = world.wire.take()
    fail(world)
    assert world.deliver(first) == {"batchItemFailures": []}
    assert world.get(first.run_id).status is Status.SUCCEEDED
    world.wire.take()
    mend(world)
    finish_with_ticks(world, runs)


@FAULTS
def test_at_the_tick_itself(open_world: OpenWorld, fail: Callable[[World], None]) -> None:
    world = open_world([noop])
    runs = [result.run.run_id for result in world.runlane.trigger_many(noop, range(4), dispatch="deferred")]
    fail(world)
    assert world.tick()["failed"] == []
    world.wire.take()
    mend(world)
    finish_with_ticks(world, runs)


def test_when_cancelling_and_resuming(open_world: OpenWorld) -> None:
    world = open_world([noop], [one_at_a_time])
    first, *rest = (result.run.run_id for result in world.runlane.trigger_many(noop, range(4)))
    world.wire.take()
    refuse_all(world)
    assert world.runlane.runs.cancel(first) is Status.CANCELLED
    world.runlane.queues.pause("main")
    world.runlane.queues.resume("main")
    mend(world)
    finish_with_ticks(world, rest)


class Stubborn:
    """A trigger store whose marks fail; all else is the real one's."""

    def __init__(self, real: Any, fault: BaseException) -> None:
        self._real = real
        self.fault: BaseException | None = fault

    def mark_published(self, marks: Sequence[PublishMark]) -> None:
        if self.fault is not None:
            raise self.fault
        self._real.mark_published(marks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_when_published_but_never_marked(dsn: str, open_world: OpenWorld) -> None:
    """Every wakeup comes twice then: the second finds its run done."""
    storage = PostgresStorage(dsn)
    marks = storage.triggers = Stubborn(storage.triggers, UnavailableError("storage_unavailable", "gone"))  # type: ignore[assignment]
    world = open_world([noop], storage=storage)
    runs = [result.run.run_id for result in world.runlane.trigger_many(noop, range(5))]
    lost = world.wire.take()
    marks.fault = None
    world.lane.age_publication(*runs)
    world.tick()
    assert sorted(one.run_id for one in world.wire.sent) == sorted(runs)
    world.wire.sent.extend(lost)
    finish_with_ticks(world, runs)


@BOTH
@pytest.mark.parametrize("point", ["before the send", "between send and mark"])
def test_when_the_process_dies_between_commit_and_publish(dsn: str, open_world: OpenWorld, point: str) -> None:
    storage = PostgresStorage(dsn)
    world = open_world([noop], storage=storage)
    if point == "before the send":
        world.wire.breaks = Died()
        with pytest.raises(Died):
            world.runlane.trigger_many(noop, range(5))
    else:
        storage.triggers.mark_published = lambda marks: None  # type: ignore[method-assign]
        world.runlane.trigger_many(noop, range(5))
    world.wire.take()
    survivor = open_world([noop])
    runs = [run.run_id for run in survivor.runlane.runs.list(limit=5).data]
    assert len(runs) == 5
    assert survivor.tick()["counts"]["publish_unpublished"] == 0, "their publisher may still live"
    finish_with_ticks(survivor, runs)


def test_when_a_worker_dies_between_settle_and_publish(dsn: str, open_world: OpenWorld) -> None:
    world = open_world([noop], [one_at_a_time], continue_inline_for="0s")
    runs = [result.run.run_id for result in world.runlane.trigger_many(noop, range(3))]
    (first,) = world.wire.take()
    world.wire.breaks = Died()
    with pytest.raises(Died):
        world.deliver(first)
    survivor = open_world([noop], [one_at_a_time])
    assert survivor.get(first.run_id).status is Status.SUCCEEDED
    finish_with_ticks(survivor, runs)


def test_while_a_transport_is_down_a_tick_ends_and_keeps_the_runs(open_world: OpenWorld) -> None:
    world = open_world([noop])
    refuse_all(world)
    runs = [result.run.run_id for result in world.runlane.trigger_many(noop, range(700))]
    for _ in range(2):
        world.lane.age_publication(*runs)
        assert world.tick()["failed"] == []
    mend(world)
    world.lane.age_publication(*runs)
    assert world.tick()["counts"]["publish_unpublished"] == 700
    assert len({wakeup.run_id for wakeup in world.wire.sent}) == 700
    world.deliver_sent()
    assert world.count("outcome") == 700


def test_a_wakeup_refused_for_good_is_sent_again_when_its_dispatch_expires(open_world: OpenWorld) -> None:
    """As for a queue that was deleted: the row is dead-lettered, and its run is not lost."""
    world = open_world([noop])
    publish = world.wire.publish

    def refuse_for_good(wakeups: Sequence[Wakeup]) -> tuple[PublishResult, ...]:
        return tuple(PublishResult(one.run_id, published=False, retryable=False, error="no such queue") for one in wakeups)

    world.wire.publish = refuse_for_good  # type: ignore[method-assign]
    run_id = world.runlane.trigger(noop, 1).run.run_id
    assert world.value("SELECT publish_status FROM runlane.dispatch WHERE run_id = %s", run_id) == "dead_lettered"
    world.wire.publish = publish  # type: ignore[method-assign]
    world.lane.age_publication(run_id)
    world.lane.age_dispatch(run_id)
    world.tick()
    world.deliver_sent()
    assert world.get(run_id).status is Status.SUCCEEDED


def test_publishers_at_work_at_once_send_each_wakeup_once(open_world: OpenWorld) -> None:
    world = open_world([noop])
    refuse_all(world)
    runs = [result.run.run_id for result in world.runlane.trigger_many(noop, range(300))]
    mend(world)
    world.lane.age_publication(*runs)
    start = threading.Barrier(3)

    def tick() -> None:
        start.wait(60)
        world.tick()

    threads = [threading.Thread(target=tick) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(one.run_id for one in world.wire.sent) == sorted(runs)
    world.deliver_sent()
