"""Weights 1 : 3 : 6 of three tenants that always have work: their shares of the first 10,000 dispatches."""

from __future__ import annotations

from contextlib import closing
from time import sleep

import psycopg

from benchmarks.catalog import WEIGHTED, Payload, noop
from benchmarks.cluster import BenchCluster
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.lane import MemoryTransport, make_runlane, served

WEIGHTS = {"one": 1, "three": 3, "six": 6}
SHARES = """
SELECT r.tenant, count(*) FROM (
    SELECT run_id FROM runlane.event WHERE type = 'run.dispatched' ORDER BY at LIMIT %s) e
JOIN runlane.run r USING (run_id) GROUP BY 1"""


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    dispatches = 2_000 if quick else 10_000
    shares = _shares(cluster, dispatches)
    total = sum(WEIGHTS.values())
    rows = [
        Row(
            f"share of weight {weight} / its due, {dispatches:,} dispatches",
            Samples((shares[tenant],), "runs"),
            Samples((dispatches * weight / total,), "runs"),
            at_most=1.05,
            at_least=0.95,
        )
        for tenant, weight in WEIGHTS.items()
    ]
    return Table("Weights 1 : 3 : 6", __doc__ or "", rows)


def _shares(cluster: BenchCluster, dispatches: int) -> dict[str, int]:
    transport = MemoryTransport()
    with cluster.database("bench_weights") as dsn, closing(make_runlane(dsn, transport, continue_inline_for="1s")) as runlane:
        runlane.queues.pause(WEIGHTED)
        for tenant, weight in WEIGHTS.items():
            count = min(10_000, round(dispatches * weight / 10 * 1.2) + WEIGHTED.dispatch_window)
            runlane.trigger_many(noop, [Payload(number=number) for number in range(count)], queue=WEIGHTED, tenant=tenant)
            runlane.queues.set_weight(WEIGHTED, tenant, weight)
        with psycopg.connect(dsn, autocommit=True) as connection, served([runlane], transport):
            runlane.queues.resume(WEIGHTED)
            while _dispatched(connection) < dispatches:
                sleep(0.2)
            shares: dict[str, int] = dict(connection.execute(SHARES, (dispatches,)).fetchall())
    require(sum(shares.values()) == dispatches, f"{shares} dispatches, not {dispatches}")
    return shares


def _dispatched(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT count(*) FROM runlane.event WHERE type = 'run.dispatched'").fetchone()
    return int(row[0]) if row else 0
