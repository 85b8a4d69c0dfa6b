"""`python -m benchmarks [--only FIGURE …] [--quick]`: measure figures and print their tables; exit status 1 if a bar is missed.

Each figure that was measured in full replaces its section of docs/benchmarks.md. With `--quick` they are tried in small sizes, and the
page stays as it is.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from time import perf_counter

from rich.console import Console

from benchmarks.cluster import BenchCluster
from benchmarks.figure import Table
from benchmarks.figures import FIGURES, PAGE_ORDER, figure
from benchmarks.machine import circumstances
from benchmarks.page import write_section
from benchmarks.report import section, terminal_table
from runlane.adapters.local.postgres import LocalPostgres


def main() -> int:
    options = _options()
    answer, notes = Console(width=200), Console(stderr=True)
    tables: list[Table] = []
    with LocalPostgres() as server:
        cluster = BenchCluster(server)
        for name in options.only or FIGURES:
            started, where = perf_counter(), circumstances(server.dsn)
            tables.append(figure(name).run(cluster, quick=options.quick))
            notes.print(f"{name}: {perf_counter() - started:.0f} s")
            answer.print(terminal_table(tables[-1]))
            if not options.quick:
                write_section(name, section(tables[-1], where), PAGE_ORDER)
    missed = [f"{table.title}: {row.what}" for table in tables for row in table.rows if not row.passed]
    for line in missed:
        notes.print(f"missed: {line}", markup=False)
    return 1 if missed else 0


def _options() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=FIGURES, nargs="+", metavar="FIGURE", help=f"of {', '.join(FIGURES)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try a figure; the page stays as it is")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
