"""`python -m benchmarks [--only FIGURE] [--quick]`: the table of figures; exit status 1 if a bar is broken.

The full form also writes docs/benchmarks.md. The quick one (under 40 s) leaves out what needs long runs and allows the ratios of
CPU and of rates a tolerance.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from time import perf_counter

from rich.console import Console

from benchmarks.cluster import BenchCluster
from benchmarks.figure import Table
from benchmarks.machine import describe_machine
from benchmarks.processes import ROOT
from benchmarks.report import markdown, terminal_table
from runlane.adapters.local.postgres import LocalPostgres

FIGURES = ("dispatch", "quiet_tenant", "weights", "hand_over", "cpu_per_run", "idle_worker", "isolated_database")
QUICK = ("dispatch", "hand_over", "cpu_per_run")


def main() -> int:
    options = _options()
    answer, notes = Console(width=200), Console(stderr=True)
    tables: list[Table] = []
    with LocalPostgres() as server:
        cluster, facts = BenchCluster(server), describe_machine(server.dsn)
        for name in [options.only] if options.only else QUICK if options.quick else FIGURES:
            started = perf_counter()
            tables.append(import_module(f"benchmarks.{name}").run(cluster, quick=options.quick))
            notes.print(f"{name}: {perf_counter() - started:.0f} s")
            answer.print(terminal_table(tables[-1]))
    if not (options.quick or options.only):
        (ROOT / "docs" / "benchmarks.md").write_text(markdown(tables, facts), encoding="utf-8")
    broken = [row for table in tables for row in table.rows if not row.passed]
    return 1 if broken else 0


def _options() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=FIGURES, help="one figure; docs/benchmarks.md stays as it is")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer, for CI")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
