"""A queue of ready partitions, written as the storage would have written it, and the cost of dispatching from it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, LiteralString

import psycopg

PINS: tuple[LiteralString, ...] = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
"""The settings under which the functions run that callers enter."""

TENANTS: LiteralString = """
INSERT INTO runlane.tenant (queue_id, name, ready)
SELECT q.queue_id, 't' || g, true FROM runlane.queue q, generate_series(1, %(tenants)s) g WHERE q.name = 'wide'"""

PARTITIONS: LiteralString = """
INSERT INTO runlane.partition (queue_id, tenant_id, tenant, concurrency_key, state, waiting, occupied, vt)
SELECT q.queue_id, t.tenant_id, t.name, 'k' || g, CASE WHEN g < %(blocked)s THEN 'b' ELSE 'r' END, %(waiting)s / %(partitions)s,
       CASE WHEN g < %(blocked)s THEN q.concurrency_limit ELSE 0 END, (g * 7919::bigint) %% 1000
FROM runlane.queue q CROSS JOIN generate_series(0, %(partitions)s - 1) g
LEFT JOIN runlane.tenant t ON %(tenants)s > 0 AND t.queue_id = q.queue_id AND t.name = 't' || (1 + g %% greatest(%(tenants)s, 1))
WHERE q.name = 'wide'"""

# Ids of now, as partitions by time want them, at a fraction of the cost of making each.
WAITING: LiteralString = """
INSERT INTO runlane.waiting (partition_id, score, run_id, queue_id, due_at, priority, status, attempt, failures, seq, expiries)
SELECT p.partition_id, now() - interval '1 hour' + g * interval '1 ms', (i.prefix || substr(gen_random_uuid()::text, 15))::uuid, p.queue_id,
       now() - interval '1 hour' + g * interval '1 ms', 0, 'queued', 0, 0, 1, 0
FROM (SELECT left(runlane.new_run_id_v1(now(), 1)::text, 14) AS prefix) i, runlane.partition p, generate_series(1, %(each)s) g"""

DISPATCH_TEN: LiteralString = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT count(*) FROM runlane.queue q, LATERAL runlane.dispatch_fairly_v1(q, 10, clock_timestamp()) WHERE q.name = 'wide'"""


@dataclass(frozen=True, slots=True)
class Shape:
    partitions: int
    waiting: int
    blocked: int = 0
    tenants: int = 0

    def __str__(self) -> str:
        parts = [f"{self.partitions:,} partitions", f"{self.waiting:,} waiting"]
        parts += [f"{self.blocked:,} blocked"] if self.blocked else []
        parts += [f"{self.tenants:,} tenants"] if self.tenants else []
        return ", ".join(parts)


class FilledQueue:
    """The queue `wide` in its shape. Statistics are fresh."""

    def __init__(self, dsn: str, shape: Shape) -> None:
        self.dispatched = 0
        self._connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
        self._fill(shape)
        for pin in PINS:
            self._connection.execute(b"SET " + pin.encode() + b" = off")
        self._connection.execute("SET plan_cache_mode = force_generic_plan")

    def dispatch_ten(self) -> tuple[float, float]:
        """Buffers touched, milliseconds."""
        started = perf_counter()
        row = self._connection.execute(DISPATCH_TEN).fetchone()
        spent = (perf_counter() - started) * 1000
        assert row is not None
        plan: dict[str, Any] = row[0][0]["Plan"]
        self.dispatched += 10
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], spent

    def count_dispatched(self) -> int:
        row = self._connection.execute("SELECT count(*) FROM runlane.dispatch").fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        self._connection.close()

    def _fill(self, shape: Shape) -> None:
        facts = {"partitions": shape.partitions, "waiting": shape.waiting, "blocked": shape.blocked, "tenants": shape.tenants}
        if shape.tenants:
            self._connection.execute(TENANTS, facts)
        self._connection.execute(PARTITIONS, facts)
        self._fill_waiting(shape.waiting // shape.partitions)
        self._connection.execute("VACUUM ANALYZE")
        self._connection.execute("CHECKPOINT")

    def _fill_waiting(self, each: int) -> None:
        """Indexes are made afterwards, which takes a quarter of the time and leaves the same."""
        indexes = self._connection.execute(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'runlane' AND tablename = 'waiting'"
        ).fetchall()
        self._connection.execute("ALTER TABLE runlane.waiting DROP CONSTRAINT waiting_pkey")
        self._connection.execute("DROP INDEX runlane.waiting_run")
        self._connection.execute(WAITING, {"each": each})
        for (definition,) in indexes:
            self._connection.execute(definition)
