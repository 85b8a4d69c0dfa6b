"""A heartbeat that pauses while its handler goes on: the one way in which an attempt lives on without its lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from runlane import Context, task
from runlane.adapters.postgres.delivery import PostgresDeliveryStore
from runlane.domain.errors import UnavailableError
from runlane.domain.ids import RunId
from runlane.domain.run import Status
from runlane.services.context import LeaseLost
from tests.functions.conftest import OpenWorld
from tests.functions.world import World
from tests.waiting import until

pytestmark = pytest.mark.postgres
LEASE, LONGER_LEASE = 0.6, 1.5
MANY = 30
VERBS = ("heartbeat", "read_leases")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


@contextmanager
def no_heartbeat() -> Iterator[None]:
    def gone(*_: object, **__: object) -> None:
        raise UnavailableError("storage_unavailable", "gone")

    with pytest.MonkeyPatch.context() as outage:
        for verb in VERBS:
            outage.setattr(PostgresDeliveryStore, verb, gone)
        yield


def started(world: World, pool: ThreadPoolExecutor, slow: Any, entered: Event) -> tuple[RunId, Future[dict[str, Any]]]:
    run_id = world.runlane.trigger(slow, 1).run.run_id
    delivery = pool.submit(world.deliver, *world.wire.take())
    assert entered.wait(60)
    return run_id, delivery


def let_the_lease_end(world: World) -> None:
    until(lambda: world.count("lease WHERE expires_at <= clock_timestamp()") == 1)


def test_who_was_recovered_meanwhile_is_told_and_refused(open_world: OpenWorld, pool: ThreadPoolExecutor) -> None:
    entered, told, goes_on = Event(), Event(), Event()

    @task("slow")
    def slow(number: int, ctx: Context) -> str:
        entered.set()
        if ctx.attempt == 1:
            try:
                while True:
                    ctx.check()
                    time.sleep(0.01)
            except LeaseLost:
                told.set()
            goes_on.wait(60)
        return f"attempt {ctx.attempt}"

    world = open_world([slow], lease_duration=f"{LEASE}s")
    with no_heartbeat():
        run_id, delivery = started(world, pool, slow, entered)
        let_the_lease_end(world)
        assert world.tick()["counts"]["recover_leases"] == 1
    assert told.wait(60)
    goes_on.set()
    delivery.result()
    assert world.lane.events(run_id)[-1] == "run.result_refused"
    world.make_due(run_id)
    record = world.get(run_id)
    assert (record.status, record.attempt, record.failures, record.result) == (Status.SUCCEEDED, 2, 1, "attempt 2")


def test_one_that_goes_on_before_the_recovery_keeps_its_lease(open_world: OpenWorld, pool: ThreadPoolExecutor) -> None:
    entered, goes_on = Event(), Event()

    @task("slow")
    def slow(number: int) -> str:
        entered.set()
        goes_on.wait(60)
        return "kept"

    world = open_world([slow], lease_duration=f"{LEASE}s")
    try:
        with no_heartbeat():
            run_id, delivery = started(world, pool, slow, entered)
            let_the_lease_end(world)
        until(lambda: world.count("lease WHERE expires_at > clock_timestamp()") == 1)
        assert world.tick()["counts"]["recover_leases"] == 0
    finally:
        goes_on.set()
    assert delivery.result() == {"batchItemFailures": []}
    record = world.get(run_id)
    assert (record.status, record.attempt, record.result) == (Status.SUCCEEDED, 1, "kept")


def test_heartbeats_that_fail_everywhere_start_nothing_twice_and_take_nothing_more(open_world: OpenWorld, pool: ThreadPoolExecutor) -> None:
    """river#1321: each worker looked dead to the others."""
    goes_on, attempts = Event(), []

    @task("slow")
    async def slow(number: int) -> None:
        attempts.append(number)
        while not goes_on.is_set():
            await asyncio.sleep(0.01)

    world = open_world([slow], lease_duration=f"{LONGER_LEASE}s", worker_concurrency=MANY + 5)
    runs = [world.runlane.trigger(slow, number).run.run_id for number in range(MANY)]

    delivery = pool.submit(world.deliver, *world.wire.take())
    try:
        until(lambda: len(attempts) == MANY)
        with no_heartbeat():
            until(lambda: world.count("lease WHERE expires_at < clock_timestamp()") == MANY)
            # Others see expired leases only; this worker knows that it cannot keep what it has.
            assert world.tick()["counts"]["recover_leases"] == 0
            assert world.runlane._worker.room == 0
        until(lambda: world.count("lease WHERE expires_at > clock_timestamp()") == MANY)
        until(lambda: world.runlane._worker.room == 5)
        assert world.tick()["counts"]["recover_leases"] == 0
    finally:
        goes_on.set()
    assert delivery.result() == {"batchItemFailures": []}
    assert sorted(attempts) == list(range(MANY))
    assert world.statuses(runs) == {Status.SUCCEEDED}
