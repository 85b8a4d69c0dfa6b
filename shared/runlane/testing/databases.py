"""Databases for tests: copies of a migrated template, used again while a test has changed nothing but rows.

A copy is a tenth of a second of file system work; deleting the rows that a test has written is a tenth of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from secrets import token_hex

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from runlane.adapters.postgres.migrate import migrate
from runlane.testing.rows import Contents

PREFIX = "runlane_test_"
ANY_SESSION = f"{PREFIX}[0-9a-f]{{12}}"
MOST_USES = 50
"""Deleted rows leave their space behind, so that a database is not used for ever."""


@dataclass(slots=True)
class _Database:
    name: str
    contents: Contents
    uses: int = 0


class Databases:
    """The test databases of one process on one server; also a context manager, which drops them.

    server_dsn: of a role that may create databases. They are named `runlane_test_<12 hex digits>_<number>`, or `_template`. What an
    earlier process left there under such a name when it was killed is dropped first, that is, if its process has no connection any
    more; never the database of `server_dsn`, nor one that is named otherwise.
    """

    def __init__(self, server_dsn: str, *, schema: str = "runlane", environment: str = "test") -> None:
        self._server_dsn = server_dsn
        self._schema = schema
        self._session = f"{PREFIX}{token_hex(6)}"
        self._numbers = count(1)
        self._idle: list[_Database] = []
        # Open as long as this process uses the server, which is how others see that its databases are not left behind.
        self._keeper = psycopg.connect(make_conninfo(server_dsn, application_name=self._session), autocommit=True)
        self._drop_left_behind()
        self._template = f"{self._session}_template"
        self._administer(sql.SQL("CREATE DATABASE {}"), self._template)
        with self._connect(self._template) as connection:
            migrate(connection, schema=schema, environment=environment)
            self._contents = Contents.read(connection, schema)

    @contextmanager
    def lend(self) -> Iterator[str]:
        """The connection string of a migrated database without runs that nobody else uses."""
        found = self._idle.pop() if self._idle else self._copy()
        try:
            yield make_conninfo(self._server_dsn, dbname=found.name)
        finally:
            found.uses += 1
            if found.uses < MOST_USES and self._is_empty_again(found):
                self._idle.append(found)
            else:
                self._drop(found.name)

    def close(self) -> None:
        """Drop every database of this process."""
        for name in self._named(self._session):
            self._drop(name)
        self._keeper.close()

    def __enter__(self) -> Databases:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _copy(self) -> _Database:
        name = f"{self._session}_{next(self._numbers)}"
        # Without the checkpoints of FILE_COPY it takes longer: all pages through the log.
        self._administer(sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY"), name, self._template)
        return _Database(name, self._contents)

    def _is_empty_again(self, database: _Database) -> bool:
        try:
            with self._connect(database.name) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
                )
                emptied = database.contents.restore(connection)
        except psycopg.Error:  # Broken beyond looking at: the next test gets another.
            return False
        if emptied is None:
            return False
        database.contents = emptied
        return True

    def _drop_left_behind(self) -> None:
        # In this order: whoever made one of these databases had its connection before.
        names = self._named(ANY_SESSION)
        alive = {name for (name,) in self._keeper.execute("SELECT application_name FROM pg_stat_activity")}
        for name in names:
            if name[: len(self._session)] not in alive:
                self._drop(name)

    def _named(self, session: str) -> list[str]:
        """The databases that sessions of that name, a regular expression, made and this role may drop."""
        query = (
            "SELECT datname FROM pg_database WHERE datname ~ %s AND datname <> current_database()"
            " AND pg_has_role(datdba, 'MEMBER') ORDER BY 1"
        )
        return [name for (name,) in self._keeper.execute(query, (f"^{session}_(template|[0-9]+)$",))]

    def _drop(self, name: str) -> None:
        self._administer(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)"), name)

    def _administer(self, statement: sql.SQL, *names: str) -> None:
        self._keeper.execute(statement.format(*map(sql.Identifier, names)))

    def _connect(self, name: str) -> psycopg.Connection:
        return psycopg.connect(make_conninfo(self._server_dsn, dbname=name), autocommit=True)
