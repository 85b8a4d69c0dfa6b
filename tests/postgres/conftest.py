from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from runlane.adapters.local.binaries import installed_postgres
from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.postgres.migrate import migrate
from runlane.adapters.postgres.storage import PostgresStorage
from tests.postgres.factories import Lane
from tests.postgres.invariants import check_invariants

MAJORS = (18, 15)
TEMPLATE = "migrated"
SETTINGS = {
    "shared_buffers": "256MB",
    "autovacuum_naptime": "5s",
    "deadlock_timeout": "200ms",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "1h",
}
_NUMBERS = count(1)


@pytest.fixture(scope="session", params=MAJORS, ids=lambda major: f"postgres{major}")
def server(request: pytest.FixtureRequest) -> Iterator[LocalPostgres]:
    """A server with one migrated database that every test's own is copied from."""
    if request.param not in {binaries.major for binaries in installed_postgres()}:
        pytest.skip(f"Postgres {request.param} is not installed")
    with LocalPostgres(major=request.param, durable=False, settings=SETTINGS) as running:
        _administer(running, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
        with psycopg.connect(make_conninfo(running.socket_dsn, dbname=TEMPLATE), autocommit=True) as connection:
            migrate(connection, schema="runlane", environment="test")
        yield running


@pytest.fixture
def dsn(server: LocalPostgres) -> Iterator[str]:
    """A migrated database of the test's own."""
    name = sql.Identifier(f"test_{next(_NUMBERS)}")
    _administer(server, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, sql.Identifier(TEMPLATE)))
    yield make_conninfo(server.socket_dsn, dbname=name.as_string().strip('"'))
    _administer(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture
def storage(dsn: str) -> Iterator[PostgresStorage]:
    opened = PostgresStorage(dsn)
    yield opened
    opened.close()


@pytest.fixture
def other_storage(dsn: str) -> Iterator[PostgresStorage]:
    """A second process, as far as Postgres can tell."""
    opened = PostgresStorage(dsn)
    yield opened
    opened.close()


@pytest.fixture
def third_storage(dsn: str) -> Iterator[PostgresStorage]:
    opened = PostgresStorage(dsn)
    yield opened
    opened.close()


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    """Each statement a transaction of its own."""
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def lane(storage: PostgresStorage, connection: psycopg.Connection) -> Lane:
    return Lane(storage, connection)


@pytest.fixture(autouse=True)
def _every_count_is_true_at_the_end(request: pytest.FixtureRequest) -> Iterator[None]:
    asked = "dsn" in request.fixturenames
    dsn = request.getfixturevalue("dsn") if asked else None
    yield
    if dsn is not None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            check_invariants(connection)


def _administer(server: LocalPostgres, statement: sql.Composed) -> None:
    with psycopg.connect(server.socket_dsn, autocommit=True) as connection:
        connection.execute(statement)
