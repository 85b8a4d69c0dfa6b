"""A dispatch of ten, by buffers touched and by time. Each line compares two shapes of a queue.

It must not matter how many partitions there are, how many runs wait in them, or how many are blocked by their limit.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from statistics import median

from benchmarks.cluster import BenchCluster
from benchmarks.dispatch_fixture import FilledQueue, Shape
from benchmarks.figure import Row, Samples, Table, require

SMALL = Shape(100, 2_000)
WARM_UP, ROUNDS, EACH = 5, 5, 10

Measured = tuple[Samples, Samples]


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    partitions, waiting = (10_000, 100_000) if quick else (100_000, 2_000_000)
    wide, deep = Shape(partitions, waiting), Shape(100, waiting)
    pairs = [
        (wide, SMALL, 1.5),
        (deep, SMALL, 1.2),
        (Shape(partitions, waiting, blocked=partitions * 99 // 100), wide, 1.2),
        (Shape(partitions, waiting, tenants=partitions // 100), Shape(100, 2_000, tenants=10), 1.5),
    ]
    rows: list[Row] = []
    for shape, base, bar in pairs:
        buffers, base_buffers, time, base_time = _compared(cluster, shape, base)
        rows.append(Row(f"buffers, {shape} / {base}", buffers, base_buffers, at_most=bar))
        rows.append(Row(f"time, {shape} / {base}", time, base_time))
    return Table("Dispatch of ten", __doc__ or "", rows)


def _compared(cluster: BenchCluster, shape: Shape, base: Shape) -> tuple[Samples, Samples, Samples, Samples]:
    with ExitStack() as stack:
        queues = []
        for name, wanted in (("bench_wide", shape), ("bench_base", base)):
            dsn = stack.enter_context(cluster.database(name))
            queues.append(stack.enter_context(closing(FilledQueue(dsn, wanted))))
        for queue in queues:
            for _ in range(WARM_UP):
                queue.dispatch_ten()
        rounds = [[_round(queue) for queue in queues] for _ in range(ROUNDS)]
        for queue in queues:
            require(queue.count_dispatched() == queue.dispatched, f"{queue.count_dispatched()} dispatched, not {queue.dispatched}")
    (value, value_time), (other, other_time) = (_samples([pair[side] for pair in rounds]) for side in (0, 1))
    return value, other, value_time, other_time


def _round(queue: FilledQueue) -> tuple[float, float]:
    costs = [queue.dispatch_ten() for _ in range(EACH)]
    return median(buffers for buffers, _ in costs), median(spent for _, spent in costs)


def _samples(rounds: list[tuple[float, float]]) -> Measured:
    return Samples(tuple(buffers for buffers, _ in rounds), "buffers"), Samples(tuple(spent for _, spent in rounds), "ms")
