"""An idle polling worker in a process of its own: how soon it starts a new run, from the call of `trigger` in another process to the first
line of the handler, and what it costs while there is nothing to do: its CPU and that of its two connections' server processes.

Between the two stand two commits, of the trigger and of the claim. What one costs is reported beside them: a row inserted alone, between
the runs, on the same server.

Runs come one at a time, 50 to 150 ms apart, so that the worker is idle when each comes; the lane has no transport.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from random import Random

import psutil
import psycopg

from benchmarks.cluster import BenchCluster, settle_down
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.polling_worker import make, stamp
from benchmarks.processes import WorkerProcess

GAP = (0.05, 0.15)
"""Seconds between runs."""


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    rounds, runs, idle_for = (1, 30, 3.0) if quick else (5, 200, 10.0)
    starts: list[list[float]] = []
    commits: list[list[float]] = []
    shares: list[float] = []
    for number in range(rounds):
        name = f"bench_idle_{number}"
        with cluster.database(name) as dsn:
            settle_down(dsn)
            worker = WorkerProcess([sys.executable, "-m", "benchmarks.polling_worker", dsn])
            try:
                waits, disk = _starts(dsn, worker, runs)
                starts.append(waits)
                commits.append(disk)
                shares.append(_idle_share(cluster, name, worker, idle_for))
            finally:
                worker.close()
    rows = [
        Row("trigger to handler, p50", _percentiles(starts, 50), at_most=10),
        Row("trigger to handler, p99", _percentiles(starts, 99), at_most=50),
        Row("trigger to handler, p50 / one commit, p50", _percentiles(starts, 50), _percentiles(commits, 50)),
        Row("CPU of one core while idle", Samples(tuple(shares), "%"), at_most=1),
    ]
    return Table("An idle polling worker", __doc__ or "", rows)


def _starts(dsn: str, worker: WorkerProcess, runs: int) -> tuple[list[float], list[float]]:
    """Milliseconds to each start, and of each commit; sorted."""
    random, client, waits, commits = Random(7), make(dsn), [], []
    with closing(client), psycopg.connect(dsn, autocommit=True) as disk:
        disk.execute("CREATE TABLE committed (number int)")
        for number in range(-3, runs):
            time.sleep(random.uniform(*GAP) / 2)
            began = time.monotonic()
            disk.execute("INSERT INTO committed VALUES (%s)", (number,))
            commits.append((time.monotonic() - began) * 1000)
            time.sleep(random.uniform(*GAP) / 2)
            began = time.monotonic()
            client.trigger(stamp, number)
            answer = worker.answer()
            require(answer["number"] == number, f"run {number} was to start, not {answer}")
            # The first ones open connections and make plans.
            if number >= 0:
                waits.append((answer["at"] - began) * 1000)
    return sorted(waits), sorted(commits)


def _idle_share(cluster: BenchCluster, database: str, worker: WorkerProcess, seconds: float) -> float:
    """Per cent of a core."""
    process = psutil.Process(worker.pid)

    def used() -> float:
        times = process.cpu_times()
        return times.user + times.system + cluster.cpu(database).backends

    time.sleep(2)
    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds * 100


def _percentiles(rounds: list[list[float]], percent: int) -> Samples:
    return Samples(tuple(waits[min(len(waits) - 1, len(waits) * percent // 100)] for waits in rounds), "ms")
