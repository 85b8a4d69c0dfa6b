"""CPU per no-op run from claim to settled, two worker processes, beside pgqueuer on the same server.

Ours: `Runlane.deliver_sqs` in process, with SQS-shaped events of ten or a hundred records, the storage, telemetry and metrics of the
worker function, a payload validated by pydantic, the whole history and fenced leases. All runs are dispatched when they are triggered,
as the window is larger than their number; so no wakeup is published during the measurement, and the transport only hands events over.
Continuation within a delivery is off, so that a batch is what its event says; the last line is with it, as by default, where one
delivery takes the runs of all others and their wakeups are refused.

The peer: asyncpg and uvloop, `PgQueuer.run(batch_size=…)` in drain mode, its payload read by `json.loads`.

CPU is the workers' process time and the time of the server processes of their connections; that of the server's other processes (WAL
writer, checkpointer, autovacuum) stands apart. Start-up is in it for both: first plans here, the check of its tables there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from benchmarks.catalog import Payload, noop
from benchmarks.cluster import BenchCluster, settle_down
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.lane import MemoryTransport, make_runlane
from benchmarks.peers.environment import peer_python
from benchmarks.processes import ROOT, WorkerProcess
from benchmarks.work_check import require_each_once, require_peer_each_once

PEER = str(ROOT / "benchmarks" / "peers" / "pgqueuer_peer.py")
BARS = {10: 1.0, 100: 1.2}
QUICK_TOLERANCE = 0.15

Measured = tuple[dict[str, float], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of CPU per run, runs per second, round trips per batch."""

    worker: float
    backends: float
    others: float
    rate: float
    trips: float = 0.0

    @property
    def total(self) -> float:
        return self.worker + self.backends


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    count, repeat, sizes = (3_000, 3, (10,)) if quick else (10_000, 5, (10, 100))
    rows: list[Row] = []
    for batch in sizes:
        pairs = [(_ours(cluster, batch, count, "0s"), _peer(cluster, batch, count)) for _ in range(repeat)]
        rows += _rows(batch, [ours for ours, _ in pairs], [peer for _, peer in pairs], QUICK_TOLERANCE if quick else 0.0)
    if not quick:
        costs = [_ours(cluster, 10, count, "30s") for _ in range(3)]
        rows.append(Row("CPU with inline continuation (the default), events of 10", _samples(costs, lambda cost: cost.total, "ms")))
        rows.append(Row("throughput with it", _samples(costs, lambda cost: cost.rate, "runs/s")))
    return Table("CPU per no-op run, claim to settled", __doc__ or "", rows)


def _rows(batch: int, ours: list[Cost], peer: list[Cost], tolerance: float) -> list[Row]:
    def row(what: str, value: Callable[[Cost], float], unit: str, **bar: float) -> Row:
        return Row(f"{what}, batches of {batch}", _samples(ours, value, unit), _samples(peer, value, unit), **bar)

    return [
        row("CPU, worker and server process", lambda cost: cost.total, "ms", at_most=BARS[batch], tolerance=tolerance),
        row("of it the worker's", lambda cost: cost.worker, "ms"),
        row("of it the server processes'", lambda cost: cost.backends, "ms"),
        row("CPU of the server's other processes", lambda cost: cost.others, "ms"),
        row("throughput", lambda cost: cost.rate, "runs/s"),
        Row(f"round trips per batch of {batch}", _samples(ours, lambda cost: cost.trips, ""), at_most=3),
    ]


def _samples(costs: list[Cost], value: Callable[[Cost], float], unit: str) -> Samples:
    return Samples(tuple(value(cost) for cost in costs), unit)


def _ours(cluster: BenchCluster, batch: int, count: int, inline: str) -> Cost:
    with cluster.database("bench_ours") as dsn:
        shares = _shares(_triggered(dsn, count), batch)
        settle_down(dsn)
        command = [sys.executable, "-m", "benchmarks.worker", dsn, str(batch), inline]
        cost, answers = _measured(cluster, "bench_ours", count, [WorkerProcess(command, share) for share in shares])
        require(not any(answer["failures"] for answer in answers), "a message failed")
        require_each_once(dsn, count)
        trips = sum(sum(answer["trips"].values()) for answer in answers) / sum(answer["events"] for answer in answers)
        return Cost(**{**cost, "trips": trips})


def _peer(cluster: BenchCluster, batch: int, count: int) -> Cost:
    with cluster.database("bench_peer", ours=False) as dsn:
        for verb in (["setup", dsn], ["enqueue", dsn, str(count)]):
            subprocess.run([peer_python(), PEER, *verb], check=True, cwd=ROOT)
        settle_down(dsn)
        command = [peer_python(), PEER, "worker", dsn, str(batch)]
        cost, answers = _measured(cluster, "bench_peer", count, [WorkerProcess(command) for _ in range(2)])
        require_peer_each_once(dsn, [number for answer in answers for number in answer["handled"]], count)
        return Cost(**cost)


def _measured(cluster: BenchCluster, database: str, count: int, workers: list[WorkerProcess]) -> Measured:
    try:
        before = cluster.cpu(database)
        for worker in workers:
            worker.go()
        answers = [worker.answer() for worker in workers]
        server = cluster.cpu(database) - before
    finally:
        for worker in workers:
            worker.close()
    seconds = max(answer["ended"] for answer in answers) - min(answer["started"] for answer in answers)
    each = 1000 / count
    cpu = sum(answer["cpu"] for answer in answers)
    return {"worker": cpu * each, "backends": server.backends * each, "others": server.others * each, "rate": count / seconds}, answers


def _triggered(dsn: str, count: int) -> list[str]:
    """Trigger runs that are all dispatched at once; the bodies of their wakeups."""
    transport = MemoryTransport()
    with closing(make_runlane(dsn, transport)) as runlane:
        for start in range(0, count, 10_000):
            runlane.trigger_many(noop, [Payload(number=number) for number in range(start, min(start + 10_000, count))])
    return list(transport.bodies)


def _shares(bodies: list[str], batch: int) -> list[str]:
    """The wakeups of two workers, batch by batch in turn, as one line of JSON each."""
    batches = [bodies[start : start + batch] for start in range(0, len(bodies), batch)]
    return [json.dumps([body for part in batches[worker::2] for body in part]) for worker in range(2)]
