"""Triggers over queues that can give nothing out now: recorded, in order, and on their way as soon as something is free."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

import pytest

from runlane.domain.queue import Queue
from runlane.domain.run import Status
from runlane.domain.task import task
from tests.functions.conftest import OpenWorld
from tests.functions.world import World
from tests.waiting import until

BOTH = pytest.mark.parametrize("major", [18, 15])


@task("noop")
def noop(number: int) -> int:
    return number


def trigger_many(world: World, count: int, **options: str) -> list[str]:
    return [result.run.run_id for result in world.runlane.trigger_many(noop, range(count), **options)]


@BOTH
def test_over_a_paused_queue(open_world: OpenWorld) -> None:
    world = open_world([noop])
    before = world.runlane.trigger(noop, 0).run.run_id
    world.runlane.queues.pause("main")
    after = world.runlane.trigger(noop, 1).run.run_id
    assert [wakeup.run_id for wakeup in world.wire.take()] == [before]
    world.deliver(before, after)
    world.tick()
    assert world.statuses([before, after]) == {Status.QUEUED}
    assert (world.count("dispatch"), world.runlane.queues.stats("main")[0].paused) == (0, True)
    assert world.runlane.queues.resume("main") == 2
    world.deliver_sent()
    assert world.statuses([before, after]) == {Status.SUCCEEDED}


def test_over_a_paused_key_and_tenant_others_go_on(open_world: OpenWorld) -> None:
    world = open_world([noop], [Queue("main", default=True, concurrency_limit=2)])
    world.runlane.queues.pause("main", concurrency_key="k")
    world.runlane.queues.pause("main", tenant="t")
    key = world.runlane.trigger(noop, 1, concurrency_key="k").run.run_id
    tenant = world.runlane.trigger(noop, 1, concurrency_key="x", tenant="t").run.run_id
    other = world.runlane.trigger(noop, 1, concurrency_key="x").run.run_id
    world.deliver(key, tenant)
    world.deliver_sent()
    assert (world.statuses([key, tenant]), world.get(other).status) == ({Status.QUEUED}, Status.SUCCEEDED)
    world.runlane.queues.resume("main", concurrency_key="k")
    world.runlane.queues.resume("main", tenant="t")
    world.deliver_sent()
    assert world.statuses([key, tenant]) == {Status.SUCCEEDED}


@pytest.mark.parametrize("inline", ["0s", "30s"])
@pytest.mark.parametrize(
    "queue",
    [
        Queue("main", default=True, concurrency_limit=2),
        Queue("main", default=True, total_limit=2),
        Queue("main", default=True, dispatch_window=2),
        Queue("main", default=True, concurrency_limit=1, total_limit=2, dispatch_window=1),
    ],
    ids=["concurrency", "total", "window", "all"],
)
def test_over_a_full_queue_everything_ends_without_a_tick(open_world: OpenWorld, queue: Queue, inline: str) -> None:
    world = open_world([noop], [queue], continue_inline_for=inline)
    runs = trigger_many(world, 25)
    assert len(world.wire.sent) <= 2
    world.deliver_sent()
    assert world.statuses(runs) == {Status.SUCCEEDED}


@pytest.mark.slow
@pytest.mark.parametrize(("major", "limit", "total"), [(18, 1, None), (15, 5, None), (18, 5, 12)])
def test_3_producers_2_workers_20_keys_and_no_tick_leave_no_partition_asleep(open_world: OpenWorld, limit: int, total: int | None) -> None:
    each = 500
    beside, most, lock = defaultdict(int), defaultdict(int), threading.Lock()

    @task("keyed", concurrency_key=lambda number: str(number % 20))
    def keyed(number: int) -> None:
        key = number % 20
        with lock:
            beside[key] += 1
            most[key] = max(most[key], beside[key])
        with lock:
            beside[key] -= 1

    world = open_world([keyed], [Queue("main", default=True, concurrency_limit=limit, total_limit=total)], continue_inline_for="2s")
    producing = threading.Barrier(4)
    triggered = threading.Event()

    def produce(producer: int) -> None:
        producing.wait(60)
        for start in range(0, each, 25):
            world.runlane.trigger_many(keyed, [producer * each + number for number in range(start, start + 25)])

    def work() -> None:
        while not (triggered.is_set() and not world.wire.sent):
            wakeups = _taken(world)
            if wakeups:
                assert world.deliver(*wakeups) == {"batchItemFailures": []}
            else:
                triggered.wait(0.005)

    producers = _started(produce, [0, 1, 2])
    workers = _started(lambda _: work(), [0, 1])
    producing.wait(60)
    _joined(producers)
    triggered.set()
    _joined(workers)
    world.deliver_sent()
    until(lambda: world.count("outcome") == 3 * each)
    assert max(most.values()) <= limit
    assert world.value("SELECT max(occupied) FROM runlane.event WHERE slot_seq IS NOT NULL") <= limit


def _taken(world: World) -> list[object]:
    try:
        return list(world.wire.take(10))
    except IndexError:  # the other worker was quicker
        return []


def _started(move: Callable[[int], None], numbers: list[int]) -> list[threading.Thread]:
    threads = [threading.Thread(target=move, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    return threads


def _joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
