"""What must hold whenever no transaction is open, as the product's own checker tells it, and what tests count in committed history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from runlane.adapters.postgres.audit import PostgresAudit
from runlane.adapters.postgres.connection import FixedSource, Run, Session
from runlane.domain.verification import Invariant


class Within(Session):
    """The checker's statements on a connection of the test, inside its transaction if one is open."""

    def __init__(self, connection: psycopg.Connection) -> None:
        super().__init__(FixedSource(""), "runlane")
        self._outer = connection

    def run(self, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        return self.run_on(self._outer, name, parameters)

    @contextmanager
    def snapshot(self) -> Iterator[Run]:
        is_idle = self._outer.info.transaction_status is TransactionStatus.IDLE
        with self._outer.transaction() if is_idle else nullcontext():
            if is_idle:
                self._outer.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield self.run


def broken(connection: psycopg.Connection) -> list[Invariant]:
    return [found for found in PostgresAudit(Within(connection)).check() if not found.holds]


def check_invariants(connection: psycopg.Connection) -> None:
    found = broken(connection)
    told = (f"{one.name}: {fault.subject} {fault.fault}" for one in found for fault in one.violations)
    assert not found, "\n".join(told)


def highest_occupancy(connection: psycopg.Connection, queue: str) -> int:
    """The most slots that any partition of the queue ever held, from committed events."""
    row = connection.execute(
        "SELECT coalesce(max(e.occupied), 0) FROM runlane.event e JOIN runlane.run r USING (run_id) JOIN runlane.queue q USING (queue_id)"
        " WHERE q.name = %s",
        (queue,),
    ).fetchone()
    return int(row[0]) if row else 0


def queue_slots(connection: psycopg.Connection, queue: str) -> list[tuple[int, int]]:
    """(queue_slot_seq, queue_occupied) of every slot event of the queue, in order."""
    return connection.execute(
        "SELECT e.queue_slot_seq, e.queue_occupied FROM runlane.event e JOIN runlane.run r USING (run_id)"
        " JOIN runlane.queue q USING (queue_id)"
        " WHERE q.name = %s AND e.queue_slot_seq IS NOT NULL ORDER BY 1",
        (queue,),
    ).fetchall()
