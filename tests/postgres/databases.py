"""Databases for tests: copies of a migrated template, emptied and used again while nothing but rows has changed.

A copy takes Postgres about a tenth of a second of file system work; emptying the few tables that a test has written, a tenth of that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runlane.adapters.postgres.migrate import migrate
from runlane.adapters.postgres.storage import PostgresStorage

_TEMPLATE = "migrated"
_KEPT = ("migration", "environment")
_WARM = "warm"
ONLOOKER = "onlooker"
"""The application_name of what looks at a database between tests; whoever ends all sessions spares it."""
# Compiling and starting parallel workers for a few rows would take most of the time of looking at them.
_PLAINLY = "-c jit=off -c max_parallel_workers_per_gather=0"
_FEW = 300
_FINGERPRINT: LiteralString = """
SELECT (SELECT count(*) || '/' || max(oid) FROM pg_class WHERE relkind <> 't'), (SELECT count(*) || '/' || max(oid) FROM pg_proc),
       (SELECT string_agg(nspname || coalesce(nspacl::text, ''), ',' ORDER BY oid) FROM pg_namespace),
       (SELECT string_agg(number || checksum, ',' ORDER BY number) FROM runlane.migration)
"""
_TABLES: LiteralString = (
    "SELECT relname FROM pg_class WHERE relnamespace = 'runlane'::regnamespace AND relkind = 'r' AND relname <> ALL (%s) ORDER BY 1"
)


class WarmStorage(PostgresStorage):
    """Whoever closes it leaves its connections open for the next test."""

    def close(self) -> None:
        pass

    def cool(self) -> None:
        super().close()


class Databases:
    """The databases of one server."""

    def __init__(self, server_dsn: str) -> None:
        self._server_dsn = server_dsn
        self._numbers = count(1)
        self._idle: list[str] = []
        self._warm: defaultdict[str, defaultdict[str, list[WarmStorage]]] = defaultdict(lambda: defaultdict(list))
        self._looking: dict[str, psycopg.Connection] = {}
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
            self._cool(name)
            self._administer(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def storage(self, dsn: str) -> PostgresStorage:
        """A storage whose connections outlive the test: a new one would compile and plan everything again."""
        return self.storages(dsn, 1)[0]

    def storages(self, dsn: str, count: int) -> list[PostgresStorage]:
        """The first `count` of the storages of this database, each a process of its own as far as Postgres can tell."""
        parts = conninfo_to_dict(dsn)
        # Through a pooler, a database is reached by another port.
        warm = self._warm[str(parts["dbname"])][str(parts["port"])]
        while len(warm) < count:
            warm.append(WarmStorage(make_conninfo(dsn, application_name=_WARM)))
        return list(warm[:count])

    def connection(self, dsn: str) -> psycopg.Connection:
        """For looking at a database between tests; each statement a transaction of its own."""
        return self._onlooker(str(conninfo_to_dict(dsn)["dbname"]))

    def cool(self, dsn: str) -> None:
        """Close the connections that outlived tests of this database."""
        self._cool(str(conninfo_to_dict(dsn)["dbname"]))

    def close(self) -> None:
        for name in {*self._warm, *self._looking}:
            self._cool(name)

    def _cool(self, name: str) -> None:
        for storage in chain.from_iterable(self._warm.pop(name, {}).values()):
            storage.cool()
        if name in self._looking:
            self._looking.pop(name).close()

    def _onlooker(self, name: str) -> psycopg.Connection:
        if name not in self._looking or self._looking[name].closed:
            conninfo = make_conninfo(self._server_dsn, dbname=name, application_name=ONLOOKER, options=_PLAINLY)
            self._looking[name] = psycopg.connect(conninfo, autocommit=True)
        return self._looking[name]

    def _copy(self) -> str:
        name = f"test_{next(self._numbers)}"
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(sql.Identifier(name), sql.Identifier(_TEMPLATE))
        self._administer(copy)
        return name

    def _empty(self, name: str) -> bool:
        """Whether the database is as new again; False: more than rows has changed."""
        connection = self._onlooker(name)
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            " AND application_name <> ALL (%s)",
            ([_WARM, ONLOOKER],),
        )
        if connection.execute(_FINGERPRINT).fetchone() != self._fingerprint:
            return False
        written = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {}, EXISTS (SELECT 1 FROM {} OFFSET {}) WHERE EXISTS (SELECT 1 FROM {})").format(
                table, sql.Identifier("runlane", table), sql.Literal(_FEW), sql.Identifier("runlane", table)
            )
            for table in self._tables
        )
        # Truncating makes new files for a table and each of its indexes: for few rows that costs more than deleting them.
        empty = {True: sql.SQL("TRUNCATE {}"), False: sql.SQL("DELETE FROM {}")}
        for table, is_large in connection.execute(written).fetchall():
            connection.execute(empty[is_large].format(sql.Identifier("runlane", table)))
        return True

    def _connect(self, name: str) -> psycopg.Connection:
        return psycopg.connect(make_conninfo(self._server_dsn, dbname=name), autocommit=True)

    def _administer(self, statement: sql.Composed) -> None:
        with self._connect("postgres") as connection:
            connection.execute(statement)
