from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import psycopg
import pytest

from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.postgres.storage import PostgresStorage
from tests.conftest import Running
from tests.postgres.databases import Databases
from tests.postgres.factories import Lane
from tests.postgres.invariants import check_invariants

MAJORS = (18, 15)


@pytest.fixture(params=MAJORS, ids=lambda major: f"postgres{major}")
def server(request: pytest.FixtureRequest, running: Callable[[int], Running]) -> LocalPostgres:
    return running(request.param).server


@pytest.fixture
def databases(server: LocalPostgres, running: Callable[[int], Running]) -> Databases:
    return running(server.binaries.major).databases


@pytest.fixture
def dsn(databases: Databases) -> Iterator[str]:
    """A migrated database of the test's own."""
    with databases.lend() as found:
        yield found


@pytest.fixture
def storage(databases: Databases, dsn: str) -> PostgresStorage:
    return databases.storage(dsn)


@pytest.fixture
def storages(databases: Databases, dsn: str) -> Callable[[int], list[PostgresStorage]]:
    """So many processes, as far as Postgres can tell; the first three are `storage`, `other_storage` and `third_storage`."""
    return partial(databases.storages, dsn)


@pytest.fixture
def other_storage(storages: Callable[[int], list[PostgresStorage]]) -> PostgresStorage:
    """A second process, as far as Postgres can tell."""
    return storages(2)[1]


@pytest.fixture
def third_storage(storages: Callable[[int], list[PostgresStorage]]) -> PostgresStorage:
    return storages(3)[2]


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
    if "dsn" not in request.fixturenames:
        yield
        return
    dsn, databases = request.getfixturevalue("dsn"), request.getfixturevalue("databases")
    yield
    check_invariants(databases.connection(dsn))
