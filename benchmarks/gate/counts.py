"""What noise cannot touch: statements, round trips, buffers, WAL bytes and transaction ids of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import psycopg

from benchmarks.cluster import BenchCluster
from benchmarks.gate.work import STEPS, Side
from benchmarks.lane import counted_trips

DATABASE = "bench_counts"
TOTALS = """
SELECT sum(s.calls)::bigint, sum(s.shared_blks_hit + s.shared_blks_read) FILTER (WHERE s.toplevel)::bigint,
       (pg_current_wal_insert_lsn() - '0/0')::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = %s"""

Figures = dict[str, float]
"""Per run, by "step: unit"."""


@dataclass(frozen=True, slots=True)
class Counts:
    statements: int
    buffers: int
    wal: int
    ids: int

    def __sub__(self, before: Counts) -> Counts:
        return Counts(self.statements - before.statements, self.buffers - before.buffers, self.wal - before.wal, self.ids - before.ids)


def counted(cluster: BenchCluster, server: str) -> Figures:
    """The second time that everything is done: connections are open and plans are made."""
    figures: Figures = {}
    with psycopg.connect(server, autocommit=True) as admin, cluster.database(DATABASE) as dsn:
        admin.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        # Those that functions execute are statements too. Elsewhere nothing is tracked, since it costs CPU.
        admin.execute(f"ALTER DATABASE {DATABASE} SET pg_stat_statements.track = 'all'")
        with Side(dsn) as side:
            for step in STEPS:
                step.do(side)
            for step in STEPS:
                figures |= _per_run(admin, step.name, step.runs, partial(step.do, side))
    return figures


def _per_run(admin: psycopg.Connection, name: str, runs: int, do: Callable[[], None]) -> Figures:
    before = _totals(admin)
    with counted_trips() as trips:
        do()
    spent = _totals(admin) - before
    return {
        f"{name}: statements": spent.statements / runs,
        f"{name}: round trips": sum(trips.values()) / runs,
        f"{name}: buffers": spent.buffers / runs,
        f"{name}: bytes of WAL": spent.wal / runs,
        f"{name}: transaction ids": spent.ids / runs,
    }


def _totals(admin: psycopg.Connection) -> Counts:
    row = admin.execute(TOTALS, (DATABASE,)).fetchone()
    assert row is not None
    return Counts(*row)
