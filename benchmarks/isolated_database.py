"""What a test pays for its isolated, migrated database: the fixture `runlane`, set up and torn down, around a test of one run.

On a server started as the pytest plugin starts it. Most tests change nothing but rows and leave their database to the next one; the
last line is for a test that makes a table of its own, so that its database is dropped and another copied from the template.
"""

from __future__ import annotations

from statistics import quantiles
from time import perf_counter

import psycopg

from benchmarks.catalog import QUEUES, TASKS, Payload, noop
from benchmarks.cluster import BenchCluster
from benchmarks.figure import Row, Samples, Table, require
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.runtime import Runlane
from runlane.services.lane import Lane
from runlane.testing import Databases, RecordingTransport, drain, on_database
from runlane.testing.application import server_for_tests

BAR = 200.0


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    tests = 40 if quick else 100
    runlane = Runlane(lane=Lane(PostgresStorage("host=/nowhere"), RecordingTransport()), queues=QUEUES, tasks=TASKS)
    with server_for_tests() as server, Databases(server) as databases:
        rows = [_test(runlane, databases) for _ in range(tests)]
        tables = [_test(runlane, databases, "CREATE TABLE mine (id int)") for _ in range(tests // 4)]
    return Table(
        "An isolated database for a test",
        __doc__ or "",
        [
            Row("set up and torn down, median", Samples(tuple(rows), "ms"), at_most=BAR),
            Row("95th percentile", Samples((_p95(rows),), "ms"), at_most=BAR),
            Row("after a test that changed more than rows, median", Samples(tuple(tables), "ms")),
            Row("95th percentile", Samples((_p95(tables),), "ms")),
        ],
    )


def _test(runlane: Runlane, databases: Databases, statement: str = "") -> float:
    """Milliseconds around the test's body."""
    began = perf_counter()
    with databases.lend() as dsn, on_database(runlane, dsn):
        ready = perf_counter()
        runlane.trigger(noop, Payload(number=1))
        require(len(drain(runlane).attempts) == 1, "one run, one attempt")
        if statement:
            with psycopg.connect(dsn) as connection:
                connection.execute(statement.encode())
        done = perf_counter()
    return (perf_counter() - done + ready - began) * 1000


def _p95(values: list[float]) -> float:
    return quantiles(values, n=20)[-1]
