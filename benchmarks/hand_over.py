"""Hand-over: 500 no-op runs of one key on limit 1 beside limit 10, served by two workers, without a tick."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from time import monotonic, sleep

import psycopg

from benchmarks.catalog import LIMIT_1, LIMIT_10, Payload, noop
from benchmarks.cluster import BenchCluster
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.lane import MemoryTransport, counted_trips, make_runlane, served
from benchmarks.work_check import require_each_once
from runlane import Queue

RUNS = 500
PATIENCE = 60.0
SECONDS = "SELECT extract(epoch FROM max(at) - min(at) FILTER (WHERE type = 'run.claimed')) FROM runlane.event"


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    rates: dict[int, list[float]] = {1: [], 10: []}
    trips: dict[int, list[float]] = {1: [], 10: []}
    for _ in range(3 if quick else 9):
        for queue in (LIMIT_1, LIMIT_10):
            rate, counts = _handed_over(cluster, queue)
            rates[queue.concurrency_limit or 0].append(rate)
            trips[queue.concurrency_limit or 0].append(sum(counts.values()) / RUNS)
    rows = [
        Row(
            "rate on limit 1 / on limit 10",
            Samples(tuple(rates[1]), "runs/s"),
            Samples(tuple(rates[10]), "runs/s"),
            at_least=0.3,
            tolerance=0.1 if quick else 0.0,
        ),
        *(Row(f"round trips per run, limit {limit}", Samples(tuple(counts), ""), at_most=3) for limit, counts in trips.items()),
        Row("ticks", Samples((0,), ""), at_most=0),
    ]
    return Table("Hand-over", __doc__ or "", rows)


def _handed_over(cluster: BenchCluster, queue: Queue) -> tuple[float, Counter[str]]:
    """Runs per second from the first claim to the last end by the histories, and the statements on the way."""
    transport = MemoryTransport()
    with (
        cluster.database("bench_hand_over") as dsn,
        closing(make_runlane(dsn, transport)) as one,
        closing(make_runlane(dsn, transport)) as two,
    ):
        two.start()
        one.trigger_many(noop, [Payload(number=number) for number in range(RUNS)], queue=queue, concurrency_key="customer-7")
        with psycopg.connect(dsn, autocommit=True) as connection, counted_trips() as trips, served([one, two], transport):
            _wait_until_done(connection)
            row = connection.execute(SECONDS).fetchone()
        require_each_once(dsn, RUNS)
        require("dispatch_queues" not in trips, "a tick dispatched")
        return RUNS / float(row[0] if row else 0), trips


def _wait_until_done(connection: psycopg.Connection) -> None:
    given_up_at = monotonic() + PATIENCE
    while (row := connection.execute("SELECT count(*) FROM runlane.outcome").fetchone()) != (RUNS,):
        require(monotonic() < given_up_at, f"{RUNS} runs were not done in {PATIENCE} s: {row} were")
        sleep(0.1)  # Seldom, so that asking takes nothing from the work.
