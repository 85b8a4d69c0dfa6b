"""Databases for tests: copies of a migrated template, emptied and used again while nothing but rows has changed.

A copy takes Postgres about a tenth of a second of file system work; emptying the few tables that a test has written, a tenth of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from runlane.adapters.postgres.migrate import migrate

_TEMPLATE = "migrated"
_KEPT = ("migration", "environment")
_FINGERPRINT: LiteralString = """
SELECT (SELECT count(*) || '/' || max(oid) FROM pg_class WHERE relkind <> 't'), (SELECT count(*) || '/' || max(oid) FROM pg_proc),
       (SELECT string_agg(nspname || coalesce(nspacl::text, ''), ',' ORDER BY oid) FROM pg_namespace),
       (SELECT string_agg(number || checksum, ',' ORDER BY number) FROM runlane.migration)
"""
_TABLES: LiteralString = (
    "SELECT relname FROM pg_class WHERE relnamespace = 'runlane'::regnamespace AND relkind = 'r' AND relname <> ALL (%s) ORDER BY 1"
)


class Databases:
    """The databases of one server."""

    def __init__(self, server_dsn: str) -> None:
        self._server_dsn = server_dsn
        self._numbers = count(1)
        self._idle: list[str] = []
        self._administer(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_TEMPLATE)))
        with self._connect(_TEMPLATE) as connection:
            migrate(connection, schema="runlane", environment="test")
            self._fingerprint = connection.execute(_FINGERPRINT).fetchone()
            self._tables = [name for (name,) in connection.execute(_TABLES, (list(_KEPT),))]

    @contextmanager
    def lend(self) -> Iterator[str]:
        """The connection string of a migrated database that nobody else uses."""
        name = self._idle.pop() if self._idle else self._copy()
        yield make_conninfo(self._server_dsn, dbname=name)
        if self._empty(name):
            self._idle.append(name)
        else:
            self._administer(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _copy(self) -> str:
        name = f"test_{next(self._numbers)}"
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(sql.Identifier(name), sql.Identifier(_TEMPLATE))
        self._administer(copy)
        return name

    def _empty(self, name: str) -> bool:
        """Whether the database is as new again; False: more than rows has changed."""
        with self._connect(name) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            if connection.execute(_FINGERPRINT).fetchone() != self._fingerprint:
                return False
            written = sql.SQL(" UNION ALL ").join(
                sql.SQL("SELECT {} WHERE EXISTS (SELECT 1 FROM {})").format(table, sql.Identifier("runlane", table))
                for table in self._tables
            )
            tables = [sql.Identifier("runlane", table) for (table,) in connection.execute(written)]
            if tables:
                connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(sql.SQL(", ").join(tables)))
        return True

    def _connect(self, name: str) -> psycopg.Connection:
        return psycopg.connect(make_conninfo(self._server_dsn, dbname=name), autocommit=True)

    def _administer(self, statement: sql.Composed) -> None:
        with self._connect("postgres") as connection:
            connection.execute(statement)
