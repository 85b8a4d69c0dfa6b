"""3,000 no-op runs of one key on a queue throttled to 50 a second with a burst of 10, served by 20 workers.

A worker is a runtime of its own on a thread of its own, with connections of its own, fed SQS-shaped events of up to ten records; the
transport hides a message for its DelaySeconds, as SQS does. No tick runs. Starts are the claims of the histories: the most of them in any
second, half-open, from each start, and the average from the first to the last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack, closing
from threading import Timer
from time import monotonic, sleep

import psycopg

from benchmarks.catalog import FIFTY_A_SECOND, Payload, noop
from benchmarks.cluster import BenchCluster
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.lane import MemoryTransport, make_runlane, served
from benchmarks.work_check import require_each_once
from runlane.adapters.sqs.batches import delay_seconds
from runlane.ports.stores import PublishResult, Wakeup

RUNS, WORKERS = 3_000, 20
PATIENCE = 1.5
"""Times the seconds that the runs should take."""
STARTS = "SELECT extract(epoch FROM at)::float8 FROM runlane.event WHERE type = 'run.claimed' ORDER BY at"


class DelayingTransport(MemoryTransport):
    """Hides a message for the whole seconds of its delay."""

    def publish(self, wakeups: Sequence[Wakeup]) -> tuple[PublishResult, ...]:
        now = [wakeup for wakeup in wakeups if delay_seconds(wakeup.delay) == 0]
        for wakeup in wakeups:
            if delay := delay_seconds(wakeup.delay):
                timer = Timer(delay, super().publish, ([wakeup],))
                timer.daemon = True
                timer.start()
        super().publish(now)
        return tuple(PublishResult(wakeup.run_id, published=True, hint=wakeup.hint) for wakeup in wakeups)


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    count, rounds = (150, 1) if quick else (RUNS, 1)
    most: list[float] = []
    average: list[float] = []
    for _ in range(rounds):
        starts = _starts(cluster, count)
        most.append(max(bisect_left(starts, start + 1) - place for place, start in enumerate(starts)))
        average.append(count / (starts[-1] - starts[0]))
    rows = [
        Row("starts in any second", Samples(tuple(most), ""), at_most=60),
        Row("starts a second on average", Samples(tuple(average), ""), at_least=48),
    ]
    return Table("Throttle: 50 a second, burst 10, 20 workers", __doc__ or "", rows)


def _starts(cluster: BenchCluster, count: int) -> list[float]:
    """Seconds since the epoch, in order."""
    transport = DelayingTransport()
    with cluster.database("bench_throttle") as dsn, ExitStack() as opened:
        workers = [opened.enter_context(closing(make_runlane(dsn, transport))) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        with served(workers, transport):
            items = [Payload(number=number) for number in range(count)]
            workers[0].trigger_many(noop, items, queue=FIFTY_A_SECOND, concurrency_key="customer-7")
            _wait_until_done(dsn, count)
        require_each_once(dsn, count)
        with psycopg.connect(dsn) as connection:
            return [start for (start,) in connection.execute(STARTS).fetchall()]


def _wait_until_done(dsn: str, count: int) -> None:
    given_up_at = monotonic() + 10 + PATIENCE * count / 50
    with psycopg.connect(dsn, autocommit=True) as connection:
        while (row := connection.execute("SELECT count(*) FROM runlane.outcome").fetchone()) != (count,):
            require(monotonic() < given_up_at, f"{count} throttled runs were not done in time: {row} were")
            sleep(0.2)
