"""LISTEN on a connection of its own, where there is one: behind a transaction pooler there is not."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import timedelta

import psycopg
from psycopg import sql

from runlane.adapters.postgres.connection import ConnectionSource, log_in
from runlane.adapters.postgres.faults import translate
from runlane.adapters.postgres.statements import statements_of

KNOWN_FOR = timedelta(minutes=1)
"""How long dispatches notify after the last sign of life of a listener."""
RENEW_EVERY = 20.0


class PostgresBell:
    """Notified by the transaction that dispatches, with the queue's name, on the channel named like the schema."""

    def __init__(self, source: ConnectionSource, schema: str, queues: Collection[str]) -> None:
        self._source = source
        self._schema = schema
        self._queues = frozenset(queues)
        self._keep_polled = statements_of(schema)["keep_polled"]
        self._connection: psycopg.Connection | None = None
        self._renewed_at = 0.0

    def open(self) -> bool:
        self.close()
        try:
            self._connection = log_in(self._source)
            if _is_pooled(self._connection):
                self.close()
                return False
            self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._schema)))
            self._renew(self._connection)
        except psycopg.Error as error:
            self.close()
            raise translate(error) from error
        return True

    def wait(self, seconds: float) -> bool:
        try:
            connection = self._connection
            if connection is None:
                raise psycopg.OperationalError("not open")
            if time.monotonic() - self._renewed_at >= RENEW_EVERY:
                self._renew(connection)
            return any(notice.payload in self._queues for notice in list(connection.notifies(timeout=seconds, stop_after=1)))
        except psycopg.Error as error:
            self.close()
            raise translate(error) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _renew(self, connection: psycopg.Connection) -> None:
        connection.execute(self._keep_polled, {"queues": list(self._queues), "for": KNOWN_FOR})
        self._renewed_at = time.monotonic()


def _is_pooled(connection: psycopg.Connection) -> bool:
    """Whether somebody stands between: a pooler tells its clients a process number of its own."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row is None or row[0] != connection.info.backend_pid
