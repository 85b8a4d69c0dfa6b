"""The figures in the order of the page: each a module of this folder, `run(cluster, *, quick) -> Table`."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from benchmarks.cluster import BenchCluster
from benchmarks.figure import Table

FIGURES = (
    "cpu_per_run",
    "trigger",
    "hand_over",
    "dispatch",
    "quiet_tenant",
    "weights",
    "churn",
    "finished_runs",
    "throttle",
    "idle_worker",
    "timers",
    "scheduled_ahead",
    "isolated_database",
    "cold_start",
)

PAGE_ORDER = (*FIGURES, "hour")
"""The page has a section more, of what is run by itself."""


class Figure(Protocol):
    """What a figure's module offers.

    cluster: databases on the one server of this run, which all figures share. quick: sizes that show that it works, in seconds; its
    numbers go nowhere. Raises WorkMissing when the work was not done exactly once.
    """

    def run(self, cluster: BenchCluster, *, quick: bool) -> Table: ...


def figure(name: str) -> Figure:
    """Imported when it is run only, so that a figure costs the others nothing."""
    module: Figure = import_module(f"benchmarks.{name}")
    return module
