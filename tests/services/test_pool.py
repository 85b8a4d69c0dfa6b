"""Several deliveries at once on one small pool: every attempt is settled exactly once, whatever it is and however long it takes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from random import Random
from threading import Lock, Thread
from typing import Any

import pytest

from runlane.domain.ids import RunId
from runlane.domain.task import task
from runlane.ports.stores import ClaimBatch, ClaimedRun
from tests.services.fakes import FakeDeliveries, claimed
from tests.services.tasks import Bench
from tests.services.test_delivery import records

DELIVERIES, BATCHES, SIZE = 4, 12, 9


@task("sync")
def sync(milliseconds: int) -> None:
    if milliseconds:
        time.sleep(milliseconds / 1000)


@task("async")
async def asynchronous(milliseconds: int) -> None:
    await asyncio.sleep(milliseconds / 1000)


class ByRun(FakeDeliveries):
    """Answers each claim with the runs that it names, as several deliveries claim at once."""

    runs: dict[RunId, ClaimedRun]

    def claim_runs(self, run_ids: Any, **options: Any) -> ClaimBatch:
        return ClaimBatch(tuple(self.runs[one] for one in run_ids))


def work(seed: int) -> list[list[ClaimedRun]]:
    rng = Random(seed)
    lengths = [0, 0, 0, 0, 1, 3]
    return [[claimed(rng.choice(["sync", "async"]), str(rng.choice(lengths))) for _ in range(SIZE)] for _ in range(BATCHES)]


@pytest.mark.parametrize("concurrency", [1, 3, 10])
def test_every_attempt_is_settled_once(concurrency: int) -> None:
    bench = Bench([sync, asynchronous], worker_concurrency=concurrency)
    batches = [work(seed) for seed in range(DELIVERIES)]
    store = ByRun()
    store.runs = {run.run_id: run for delivery in batches for batch in delivery for run in batch}
    for holder, name in ((bench.runlane._worker.settler, "_store"), (bench.runlane._worker, "store")):
        object.__setattr__(holder, name, store)
    failed: list[str] = []
    lock = Lock()

    def deliver(delivery: list[list[ClaimedRun]]) -> None:
        for batch in delivery:
            found = bench.runlane.execute_deliveries(records(batch), lambda: 60)
            with lock:
                failed.extend(found)

    threads = [Thread(target=deliver, args=(delivery,), daemon=True) for delivery in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    settled = Counter(one.run_id for group in store.settled for one in group)
    assert not failed
    assert settled == dict.fromkeys(store.runs, 1)
    pool = bench.runlane._worker.pool
    assert (pool._waiting, pool._at_loop) == (pool._waiting.__class__(), set())
