"""Runs that are due at random instants of three minutes: how late their handlers' attempts begin, by the database's clock (the time of
`run.claimed` less the due time), with one tick a minute.

A third are triggered with a delay, and hinted by their trigger; a third are recorded by `dispatch="deferred"`, and hinted by the tick that
looks ahead; a third release themselves when they first run, and are hinted by their settlement. The worker function and the maintenance
function run in one process, as `runlane dev` runs them, on the local SQS: two invocations at once, events of up to ten records, long
polls of a second.

The last lines are of a polling worker in a process of its own on a lane without a transport and without any tick.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from random import Random
from typing import Any

import psycopg

from benchmarks.catalog import MAIN, QUEUES
from benchmarks.cluster import BenchCluster, settle_down
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.lane import ENVIRONMENT
from benchmarks.processes import ROOT, WorkerProcess
from benchmarks.timers_app import TASKS, again, late
from benchmarks.work_check import LEFT
from runlane import Item, Lane, Runlane
from runlane.adapters.local.sqs import LocalSqs, local_sqs_client
from runlane.adapters.local.worker import spawn_worker
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.adapters.sqs.bindings import sqs_queue
from runlane.adapters.sqs.transport import SqsTransport

HEAD_START = 20.0
"""Seconds until the first is due: all are triggered by then, the functions have started, and the first tick has passed."""

# The attempt that the due time is of: the first, or the one after a release.
LATENESS = """
SELECT extract(epoch FROM c.at - coalesce((e.data->>'due_at')::timestamptz, r.run_at))::float8
FROM runlane.event c JOIN runlane.run r USING (run_id)
LEFT JOIN runlane.event e ON e.run_id = c.run_id AND e.type = 'run.released'
WHERE c.type = 'run.claimed' AND (e.run_id IS NULL OR c.seq > e.seq)"""


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    count, seconds = (120, 20.0) if quick else (2_000, 180.0)
    hinted = _sorted(_hinted(cluster, count, seconds))
    polled = _sorted(_polled(cluster, count // 4, seconds / 4))
    rows = [
        Row(f"lateness of {count:,} timers over {seconds:.0f} s, p50", _percentile(hinted, 50), at_most=0.5),
        Row("p99", _percentile(hinted, 99), at_most=2.0),
        Row("earliest", _one(hinted[0]), at_least=0.0),
        Row("latest", _one(hinted[-1])),
        Row(f"of {count // 4:,} over {seconds / 4:.0f} s, polled, p50", _percentile(polled, 50), at_most=0.5),
        Row("p99", _percentile(polled, 99), at_most=2.0),
        Row("earliest", _one(polled[0]), at_least=0.0),
    ]
    return Table("Timers", __doc__ or "", rows)


def _hinted(cluster: BenchCluster, count: int, seconds: float) -> list[float]:
    """Lateness of each, in seconds."""
    with cluster.database("bench_timers") as dsn, LocalSqs() as sqs:
        settle_down(dsn)
        queue = sqs.create_queue("timers", visibility_timeout=timedelta(minutes=3))
        transport = SqsTransport(
            [sqs_queue(one, queue_url=queue.url) for one in QUEUES], ENVIRONMENT, lambda: local_sqs_client(sqs.endpoint_url)
        )
        variables = {
            **sqs.variables,
            "DATABASE_URL": dsn,
            "PYTHONPATH": str(ROOT),
            "RUNLANE_APP": "benchmarks.timers_app:runlane",
            "RUNLANE_ENVIRONMENT": ENVIRONMENT,
            "RUNLANE_QUEUE_URL": queue.url,
        }
        with closing(Runlane(lane=Lane(PostgresStorage(dsn), transport), queues=QUEUES, tasks=TASKS, environment=ENVIRONMENT)) as client:
            _trigger(client, count, seconds)
            with _functions(queue.url, variables):
                _wait_for_all(dsn, count, seconds)
        return _lateness(dsn, count)


def _polled(cluster: BenchCluster, count: int, seconds: float) -> list[float]:
    with cluster.database("bench_timers") as dsn:
        settle_down(dsn)
        with closing(Runlane(lane=Lane(PostgresStorage(dsn), None), queues=QUEUES, tasks=TASKS, environment=ENVIRONMENT)) as client:
            _trigger(client, count, seconds)
        worker = WorkerProcess([sys.executable, "-m", "benchmarks.timers_worker", dsn])
        try:
            _wait_for_all(dsn, count, seconds)
        finally:
            worker.close()
        return _lateness(dsn, count)


def _trigger(client: Runlane, count: int, seconds: float) -> None:
    random, share = Random(7), count // 3
    after = [HEAD_START + random.uniform(0, seconds) for _ in range(count)]
    eager, deferred = (
        [Item(number, delay=f"{delay}s") for number, delay in enumerate(part)] for part in (after[:share], after[share : 2 * share])
    )
    client.trigger_many(late, eager, queue=MAIN)
    client.trigger_many(late, deferred, queue=MAIN, dispatch="deferred")
    client.trigger_many(again, after[2 * share :], queue=MAIN)


@contextmanager
def _functions(queue_url: str, variables: Mapping[str, str]) -> Iterator[None]:
    """The worker and the maintenance function, ticked at once and then each minute."""
    maintenance = "functions.maintenance.app:handler"
    process = spawn_worker(["--app", "functions.worker.app:handler", "--queue-url", queue_url, "--maintenance", maintenance], variables)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _wait_for_all(dsn: str, count: int, seconds: float) -> None:
    given_up_at = time.monotonic() + HEAD_START + seconds + 60
    with psycopg.connect(dsn, autocommit=True) as connection:
        while (row := connection.execute("SELECT count(*) FROM runlane.outcome").fetchone()) != (count,):
            require(time.monotonic() < given_up_at, f"of {count} timers, (ended) are {row}")
            time.sleep(1)


def _lateness(dsn: str, count: int) -> list[float]:
    with psycopg.connect(dsn) as connection:
        found = [seconds for (seconds,) in connection.execute(LATENESS).fetchall()]
        left = connection.execute(LEFT).fetchone()
    require(len(found) == count, f"{count} timers were to start once each, and {len(found)} attempts began")
    require(left == (0,), f"runs under way at the end: {left}")
    return found


def _sorted(values: Sequence[float]) -> list[float]:
    return sorted(values)


def _percentile(ordered: Sequence[float], percent: int) -> Samples:
    return _one(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)])


def _one(value: Any) -> Samples:
    return Samples((float(value),), "s")
