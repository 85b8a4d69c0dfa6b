"""Our side of a comparison: runs that wait in a database of their own, and worker processes that work them off."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace

from benchmarks.catalog import MAIN, Payload, noop
from benchmarks.cluster import BenchCluster, settle_down
from benchmarks.cost import Cost, measured
from benchmarks.figure import require
from benchmarks.lane import MemoryTransport, make_runlane
from benchmarks.processes import WorkerProcess
from benchmarks.work_check import require_each_once
from runlane import Queue
from runlane.services.trigger import Item

DATABASE = "bench_ours"


def drained(
    cluster: BenchCluster, batch: int, count: int, *, workers: int = 2, queue: Queue = MAIN, keys: int = 0, inline: str = "0s"
) -> Cost:
    """`count` no-op runs by events of `batch`.

    keys: concurrency keys that they are spread over. inline: how long a delivery goes on with further runs; none, and a batch is what its
    event says.
    """
    with cluster.database(DATABASE) as dsn:
        bodies = triggered(dsn, count, queue, keys)
        settle_down(dsn)
        command = [sys.executable, "-m", "benchmarks.worker", dsn, str(batch), inline]
        shares = [json.dumps(share) for share in _shares(bodies, batch, workers)]
        cost, answers = measured(cluster, DATABASE, count, [WorkerProcess(command, share) for share in shares])
        require(not any(answer["failures"] for answer in answers), "a message failed")
        require_each_once(dsn, count)
        trips = sum(sum(answer["trips"].values()) for answer in answers) / sum(answer["events"] for answer in answers)
        return replace(cost, trips=trips)


def triggered(dsn: str, count: int, queue: Queue = MAIN, keys: int = 0) -> list[str]:
    """Trigger runs; the bodies of the wakeups of those that were dispatched at once."""
    transport = MemoryTransport()
    with closing(make_runlane(dsn, transport)) as runlane:
        for start in range(0, count, 10_000):
            numbers = range(start, min(start + 10_000, count))
            runlane.trigger_many(noop, [_item(number, keys) for number in numbers], queue=queue)
    return list(transport.bodies)


def _item(number: int, keys: int) -> Item:
    return Item(Payload(number=number), concurrency_key=f"key-{number % keys}") if keys else Item(Payload(number=number))


def _shares(bodies: list[str], batch: int, workers: int) -> list[list[str]]:
    """The wakeups of each worker, batch by batch in turn."""
    batches = [bodies[start : start + batch] for start in range(0, len(bodies), batch)]
    return [[body for part in batches[worker::workers] for body in part] for worker in range(workers)]
