"""CPU of the server and buffers per no-op run, claim to settled in tens, beside 1,000,000 finished runs and in an empty database.

The finished runs are written by SQL as the storage would have left them, over the last twenty days in their time partitions, and analysed.
Lots of 2,000 runs are then measured in turn in both databases.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import LiteralString

import psycopg

from benchmarks.catalog import MAIN
from benchmarks.churn import BATCH, LEASE, LOT
from benchmarks.cluster import BenchCluster, settle_down
from benchmarks.figure import Row, Samples, Table, require
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.ports.stores import NewRun

NAME = "bench_finished"
# At random instants of the last twenty days; the random part of each id is its number.
FILL: tuple[LiteralString, ...] = (
    "SELECT runlane.ensure_partitions_v1(now() - interval '21 days', 3)",
    """CREATE TEMP TABLE old AS
    SELECT (left(runlane.run_id_floor_v1(x.at)::text, 14) || '7000-8000-' || lpad(to_hex(x.n), 12, '0'))::uuid AS run_id, x.at
    FROM (SELECT n, now() - random() * interval '20 days' AS at FROM generate_series(1, %(count)s::bigint) n) x""",
    """INSERT INTO runlane.run (run_id, queue_id, task, max_attempts, created_at, run_at, payload)
    SELECT o.run_id, q.queue_id, 'noop', 3, o.at, o.at, '{"number":1}' FROM old o, runlane.queue q WHERE q.name = %(queue)s ORDER BY 1""",
    """INSERT INTO runlane.outcome (run_id, status, attempt, failures, seq, ended_at, due_at, result)
    SELECT run_id, 'succeeded', 1, 0, 4, at, at, 'null' FROM old ORDER BY 1""",
    """INSERT INTO runlane.event (run_id, seq, type, at, attempt)
    SELECT o.run_id, e.seq, e.type, o.at, 1 FROM old o CROSS JOIN
    (VALUES (1, 'run.created'), (2, 'run.dispatched'), (3, 'run.claimed'), (4, 'run.succeeded')) e(seq, type) ORDER BY 1, 2""",
)
BUFFERS = """
SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0)) FROM pg_statio_user_tables
WHERE schemaname = 'runlane'"""


@dataclass
class Side:
    """One database; one connection of the server serves it."""

    name: str
    storage: PostgresStorage
    connection: psycopg.Connection

    def measure(self, cluster: BenchCluster, lot: int) -> tuple[float, float]:
        """Milliseconds of CPU and buffers a run."""
        self.storage.triggers.trigger_runs([NewRun("noop", MAIN.name, '{"number":1}') for _ in range(lot)], eager=True)
        touched = self._buffers()
        before = cluster.cpu(self.name)
        for _ in range(lot // BATCH):
            claims = self.storage.deliveries.claim_oldest([MAIN.name], limit=BATCH, lease_for=LEASE, worker="bench").claims
            require(len(claims) == BATCH, f"{len(claims)} of {BATCH} runs were claimed")
            self.storage.deliveries.settle_runs(
                [Settlement(claim.run_id, claim.token, OutcomeKind.SUCCEEDED, result="null") for claim in claims]
            )
        spent = cluster.cpu(self.name) - before
        return spent.backends * 1000 / lot, (self._buffers() - touched) / lot

    def _buffers(self) -> float:
        self.storage.close()  # A connection that ends tells the server what it has touched; the next statement opens another.
        row = self.connection.execute(BUFFERS).fetchone()
        return float(row[0]) if row else 0.0


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    finished, lot, rounds = (20_000, 500, 3) if quick else (1_000_000, LOT, 15)
    measured: dict[str, list[tuple[float, float]]] = {f"{NAME}_full": [], f"{NAME}_empty": []}
    with ExitStack() as stack:
        sides = []
        for name in measured:
            dsn = stack.enter_context(cluster.database(name))
            storage = stack.enter_context(closing(PostgresStorage(dsn)))
            sides.append(Side(name, storage, stack.enter_context(psycopg.connect(dsn, autocommit=True))))
            if name.endswith("full"):
                for statement in FILL:
                    sides[-1].connection.execute(statement, {"count": finished, "queue": MAIN.name})
            settle_down(dsn)
        for _ in range(rounds):
            for side in sides:
                measured[side.name].append(side.measure(cluster, lot))
    full, empty = measured.values()
    rows = []
    for place, (what, unit) in enumerate((("CPU of the server per run", "ms"), ("buffers per run", ""))):
        mine, plain = (Samples(tuple(values[place] for values in side), unit) for side in (full, empty))
        rows.append(Row(f"{what}, {finished:,} finished / none", mine, plain, at_most=1.1, tolerance=0.15 if quick else 0.0))
    return Table("Finished runs", __doc__ or "", rows)
