"""What happens when everything is in trouble at once: no wave of work that is done twice."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from runlane import task
from runlane.adapters.postgres.delivery import PostgresDeliveryStore
from runlane.domain.errors import UnavailableError
from runlane.domain.run import Status
from tests.functions.conftest import OpenWorld
from tests.waiting import until

pytestmark = [pytest.mark.postgres]
RUNS = 30
LEASE = 1.5


def test_heartbeats_that_fail_everywhere_start_nothing_twice_and_take_nothing_more(
    open_world: OpenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """river#1321: each worker looked dead to the others."""
    goes_on, attempts = Event(), []

    @task("slow")
    async def slow(number: int) -> None:
        attempts.append(number)
        while not goes_on.is_set():
            await asyncio.sleep(0.01)

    world = open_world([slow], lease_duration=f"{LEASE}s", worker_concurrency=RUNS + 5)
    runs = [world.runlane.trigger(slow, number).run.run_id for number in range(RUNS)]

    def gone(*_: object, **__: object) -> None:
        raise UnavailableError("storage_unavailable", "gone")

    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as outage:
        delivery = pool.submit(world.deliver, *world.wire.take())
        try:
            until(lambda: len(attempts) == RUNS)
            for verb in ("heartbeat", "read_leases"):
                outage.setattr(PostgresDeliveryStore, verb, gone)
            time.sleep(LEASE + 0.2)
            until(lambda: world.count("lease WHERE expires_at < clock_timestamp()") == RUNS)
            # Others see expired leases only; this worker knows that it cannot keep what it has.
            assert world.tick()["counts"]["recover_leases"] == 0
            assert world.runlane._worker.room == 0
            outage.undo()
            until(lambda: world.count("lease WHERE expires_at > clock_timestamp()") == RUNS)
            until(lambda: world.runlane._worker.room == 5)
            assert world.tick()["counts"]["recover_leases"] == 0
        finally:
            goes_on.set()
        assert delivery.result() == {"batchItemFailures": []}
    assert sorted(attempts) == list(range(RUNS))
    assert world.statuses(runs) == {Status.SUCCEEDED}
