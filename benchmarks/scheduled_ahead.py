"""CPU and buffers per no-op run, claim to settled in batches of ten: beside a million runs that are scheduled ahead, and in an empty
database.

The million are due over the next thirty days; they were loaded by SQL, with their histories. Then the measured runs are triggered, and
two worker processes take them as in the figure of CPU: continuation within a delivery is off, metrics are on. Buffers are those of all
statements of the measured database, planning included, from `pg_stat_database`, with the workers' start. The two databases are measured
in turn.

The last lines are of what looks at timers by its nature: a step of the tick that finds nothing due, and a look of an idle poller.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from statistics import median

import psycopg

from benchmarks.catalog import Payload, noop
from benchmarks.cluster import BenchCluster, settle_down
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.lane import MemoryTransport, make_runlane
from benchmarks.processes import WorkerProcess
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.services.maintenance.due_timers import LOOK_AHEAD

AHEAD = 1_000_000
BATCH = 10
"""Records of an event."""

LOAD = (
    # Ids of now, as partitions by time want them.
    """CREATE TEMPORARY TABLE ahead AS
       SELECT (i.prefix || substr(gen_random_uuid()::text, 15))::uuid AS run_id, q.queue_id,
              clock_timestamp() + interval '1 hour' + random() * interval '30 days' AS due_at
       FROM (SELECT left(runlane.new_run_id_v1(now(), 1)::text, 14) AS prefix) i, runlane.queue q, generate_series(1, %(count)s)
       WHERE q.name = 'main'""",
    """INSERT INTO runlane.run (run_id, queue_id, task, max_attempts, created_at, run_at, payload)
       SELECT run_id, queue_id, 'noop', 3, now(), due_at, '{"number": 1}' FROM ahead""",
    "INSERT INTO runlane.event (run_id, seq, type, at) SELECT run_id, 1, 'run.created', now() FROM ahead",
    """INSERT INTO runlane.timer (run_id, queue_id, due_at, priority, status, attempt, failures, seq)
       SELECT run_id, queue_id, due_at, 0, 'queued', 0, 0, 1 FROM ahead""",
    """UPDATE runlane.queue_counter c SET scheduled = %(count)s
       FROM runlane.queue q WHERE q.queue_id = c.queue_id AND q.name = 'main' AND c.shard = 0""",
)
BUFFERS = "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"
DONE = "SELECT count(*) FROM runlane.outcome WHERE status = 'succeeded'"


@dataclass(frozen=True, slots=True)
class Cost:
    """Per run: milliseconds of CPU of the workers and their server processes, buffers. Milliseconds of a quiet tick and of a look."""

    cpu: float
    buffers: float
    tick: float
    look: float


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    ahead, count, rounds = (100_000, 2_000, 3) if quick else (AHEAD, 10_000, 5)
    full: list[Cost] = []
    empty: list[Cost] = []
    with _databases(cluster, ahead) as (loaded, bare):
        for _ in range(rounds):
            full.append(_measured(cluster, "bench_ahead", loaded, count))
            empty.append(_measured(cluster, "bench_bare", bare, count))
    beside, tolerance = f"beside {ahead:,} scheduled / beside none", 0.15 if quick else 0.0
    rows = [
        Row(f"CPU per run, {beside}", _of(full, "cpu", "ms"), _of(empty, "cpu", "ms"), at_most=1.1, tolerance=tolerance),
        Row(f"buffers per run, {beside}", _of(full, "buffers", ""), _of(empty, "buffers", ""), at_most=1.1),
        Row("a quiet look for due timers and for hints", _of(full, "tick", "ms"), _of(empty, "tick", "ms")),
        Row("a look of an idle poller", _of(full, "look", "ms"), _of(empty, "look", "ms")),
    ]
    return Table("Runs scheduled ahead", __doc__ or "", rows)


def _of(costs: list[Cost], field: str, unit: str) -> Samples:
    return Samples(tuple(getattr(cost, field) for cost in costs), unit)


@contextmanager
def _databases(cluster: BenchCluster, ahead: int) -> Iterator[tuple[str, str]]:
    with cluster.database("bench_ahead") as loaded, cluster.database("bench_bare") as bare:
        with psycopg.connect(loaded) as connection:
            for statement in LOAD:
                connection.execute(statement.encode(), {"count": ahead})
        yield loaded, bare


def _measured(cluster: BenchCluster, database: str, dsn: str, count: int) -> Cost:
    command = [sys.executable, "-m", "benchmarks.worker", dsn, str(BATCH), "0s"]
    bodies = _triggered(dsn, count)
    settle_down(dsn)
    done, buffers = _asked(dsn, DONE), _asked(dsn, BUFFERS)
    workers = [WorkerProcess(command, json.dumps(half)) for half in (bodies[: count // 2], bodies[count // 2 :])]
    try:
        before = cluster.cpu(database)
        for worker in workers:
            worker.go()
        answers = [worker.answer() for worker in workers]
        spent = (cluster.cpu(database) - before).backends + sum(answer["cpu"] for answer in answers)
    finally:
        for worker in workers:
            worker.close()
    require(_asked(dsn, DONE) - done == count, f"{count} runs were to succeed")
    # Backends report what they touched when they end.
    touched = _asked(dsn, BUFFERS) - buffers
    return Cost(spent * 1000 / count, touched / count, *_looks(dsn))


def _asked(dsn: str, query: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0


def _looks(dsn: str) -> tuple[float, float]:
    with closing(PostgresStorage(dsn)) as storage:
        return (
            _usual(lambda: storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=500)),
            _usual(lambda: storage.deliveries.look(["main"])),
        )


def _usual(look: Callable[[], object]) -> float:
    """Milliseconds, after some that make plans and clean up behind the runs."""
    times = []
    for _ in range(9):
        began = time.perf_counter()
        look()
        times.append((time.perf_counter() - began) * 1000)
    return median(times[4:])


def _triggered(dsn: str, count: int) -> list[str]:
    """Trigger runs that are all dispatched at once; the bodies of their wakeups."""
    transport = MemoryTransport()
    with closing(make_runlane(dsn, transport)) as runlane:
        runlane.trigger_many(noop, [Payload(number=number) for number in range(count)])
    return list(transport.bodies)
