"""Tenants of one run a second beside one with a backlog, on a bounded queue (`total_limit` 8, runs of 10 ms) served in this process.

The backlog is refilled at the pace at which it is served, so that 200 stay about 200 and 200,000 stay 200,000.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from random import Random
from time import monotonic, sleep

import psycopg

from benchmarks.catalog import Payload, nap
from benchmarks.cluster import BenchCluster, settle_down
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.lane import MemoryTransport, make_runlane, served
from runlane.runtime import Runlane

WAITS = """
SELECT extract(epoch FROM c.at - r.run_at) * 1000 FROM runlane.run r
LEFT JOIN LATERAL (SELECT min(at) AS at FROM runlane.event e WHERE e.run_id = r.run_id AND e.type = 'run.claimed') c ON true
WHERE r.tenant LIKE 'quiet-%'"""
BACKLOG = "SELECT waiting FROM runlane.partition WHERE tenant = 'noisy'"


QUIET_TENANTS = 6
"""Each of one run a second: a 99th percentile wants more than a handful of waits."""

REFILL_EVERY = 0.02
"""Seconds; eight slots serve about ten runs in that time."""


@dataclass
class Side:
    """One database with its backlog and its worker."""

    dsn: str
    backlog: int
    stack: ExitStack
    transport: MemoryTransport = field(default_factory=MemoryTransport)
    random: Random = field(default_factory=lambda: Random(7))
    triggered: int = 0

    def __post_init__(self) -> None:
        self.runlane: Runlane = self.stack.enter_context(closing(make_runlane(self.dsn, self.transport)))
        # A delivery that goes on for long would still serve this side while the other is measured.
        self.worker: Runlane = self.stack.enter_context(closing(make_runlane(self.dsn, self.transport, continue_inline_for="1s")))
        self.connection = self.stack.enter_context(psycopg.connect(self.dsn, autocommit=True))
        self.refill()
        settle_down(self.dsn)

    def refill(self) -> None:
        row = self.connection.execute(BACKLOG).fetchone()
        missing = self.backlog - (int(row[0]) if row else 0)
        for start in range(0, missing, 10_000):
            payloads = [Payload(number=number) for number in range(min(10_000, missing - start))]
            self.runlane.trigger_many(nap, payloads, tenant="noisy")

    def serve(self, seconds: int) -> None:
        """One run of each quiet tenant in each second, at a random moment of it."""
        self.transport.open()
        with served([self.worker], self.transport):
            start = monotonic()
            moments = sorted(
                (start + second + self.random.random(), f"quiet-{tenant}") for second in range(seconds) for tenant in range(QUIET_TENANTS)
            )
            while (now := monotonic()) < start + seconds:
                while moments and now >= moments[0][0]:
                    self.runlane.trigger(nap, Payload(number=-1), tenant=moments.pop(0)[1])
                    self.triggered += 1
                self.refill()
                sleep(REFILL_EVERY)

    def waits(self) -> list[float]:
        waits = [wait for (wait,) in self.connection.execute(WAITS)]
        require(len(waits) == self.triggered and None not in waits, f"{self.triggered} quiet runs, waits {waits}")
        return [float(wait) for wait in waits]


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    large, rounds, seconds = (20_000, 2, 4) if quick else (200_000, 5, 8)
    with ExitStack() as stack:
        sides = [Side(stack.enter_context(cluster.database(f"bench_{n}")), n, stack) for n in (large, 200)]
        for _ in range(rounds):
            for side in sides:
                side.serve(seconds)
        waits = [side.waits() for side in sides]
    noisy, calm = (Samples(tuple(_percentiles(found, 99)), "ms") for found in waits)
    half, calm_half = (Samples(tuple(_percentiles(found, 50)), "ms") for found in waits)
    beside = f"beside {large:,} waiting / beside 200"
    rows = [
        Row(f"wait p99, {beside}", noisy, calm, at_most=1.5),
        Row(f"wait p99 beside {large:,}", noisy, at_most=1000),
        Row(f"wait p50, {beside}", half, calm_half),
    ]
    return Table("A quiet tenant", __doc__ or "", rows)


def _percentiles(values: list[float], percent: int) -> list[float]:
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]]
