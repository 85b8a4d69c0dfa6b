"""`python -m benchmarks.gate [--accept REASON]`: has what a run costs grown? Exit status 1 if so.

Statements, round trips, buffers, WAL bytes and transaction ids are the same in every run, and may grow by a tenth. CPU is a multiple of
the CPU of a raw queue on the same machine in the same minute; noise reaches it, so it is measured up to three times, each time the lower
counts, and its margin is wider.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from time import perf_counter

from benchmarks.cluster import BenchCluster
from benchmarks.gate import kept
from benchmarks.gate.counts import Figures, counted
from benchmarks.gate.cpu import measured
from runlane.adapters.local.postgres import LocalPostgres

TRIES = 3
SETTINGS = {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
    # What the server does by itself would be counted.
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "8GB",
}
REMEDY = 'Improve it; or keep it, with the reason: .venv/bin/python -m benchmarks.gate --accept "why a run may cost this"'


def main() -> int:
    parser = ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--accept", metavar="REASON", help="keep the figures of this run, and why they are what they are")
    reason: str | None = parser.parse_args().accept
    started = perf_counter()
    before = {} if reason else kept.read().figures
    figures = _measured(before)
    print(f"{len(figures)} figures in {perf_counter() - started:.0f} s")
    if reason:
        kept.write(kept.Kept(reason, figures))
        return 0
    for better in kept.shrunk(before, figures):
        print(f"better: {better}")
    worse = kept.grown(before, figures)
    for one in worse:
        print(f"GROWN: {one}, allowed {kept.margin(one.name) - 1:+.0%}")
    if worse:
        print(REMEDY)
    return 1 if worse else 0


def _measured(before: kept.Mapping[str, float]) -> Figures:
    """Counts once; CPU again while it is above its margin."""
    with LocalPostgres(durable=False, settings=SETTINGS) as server:
        cluster = BenchCluster(server)
        counts, cpu = counted(cluster, server.dsn), measured(cluster)
        for _ in range(TRIES - 1):
            if not before or not kept.grown({name: before.get(name, 0.0) for name in cpu}, cpu):
                break
            again = measured(cluster)
            cpu = {name: min(value, again[name]) for name, value in cpu.items()}
    return {**counts, **cpu}


if __name__ == "__main__":
    sys.exit(main())
