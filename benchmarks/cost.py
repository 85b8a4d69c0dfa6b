"""What a run costs: CPU of the processes that work and of the server processes that serve them, and the pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cluster import BenchCluster
from benchmarks.figure import Samples
from benchmarks.processes import WorkerProcess


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of CPU per run, runs per second, round trips per batch.

    worker: of the processes that work, or trigger. backends: of the server's processes for their connections. others: of the server's
    other processes, which is no part of the total.
    """

    worker: float
    backends: float
    others: float
    rate: float
    trips: float = 0.0

    @property
    def total(self) -> float:
        return self.worker + self.backends


def total(cost: Cost) -> float:
    return cost.total


def rate(cost: Cost) -> float:
    return cost.rate


def samples(costs: Sequence[Cost], value: Callable[[Cost], float], unit: str) -> Samples:
    return Samples(tuple(value(cost) for cost in costs), unit)


def measured(cluster: BenchCluster, database: str, count: int, workers: Sequence[WorkerProcess]) -> tuple[Cost, list[dict[str, Any]]]:
    """Let the workers go; what `count` runs cost, and what they answer. They are closed afterwards."""
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
    cpu, each = sum(answer["cpu"] for answer in answers), 1000 / count
    return Cost(cpu * each, server.backends * each, server.others * each, count / seconds), answers
