from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import psycopg
import pytest

from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.postgres.storage import PostgresStorage
from tests.conftest import Running
from tests.pooler import NEEDS_PGBOUNCER
from tests.postgres.databases import Databases
from tests.postgres.factories import Lane
from tests.postgres.invariants import check_invariants

DIRECT = [pytest.param((major, False), id=f"postgres{major}") for major in (18, 15)]
POOLED = pytest.param((18, True), id="pooled", marks=[pytest.mark.thorough, NEEDS_PGBOUNCER])
"""Postgres 18 through pgbouncer, in transaction mode."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a server runs on each; those marked `direct` not through a pooler."""
    if "server" in metafunc.fixturenames and "route" not in _parametrized(metafunc.definition):
        routes = DIRECT if metafunc.definition.get_closest_marker("direct") else [*DIRECT, POOLED]
        metafunc.parametrize("route", routes, indirect=True)


def _parametrized(definition: pytest.Item) -> set[str]:
    names = (mark.args[0] for mark in definition.iter_markers("parametrize"))
    return {name.strip() for each in names for name in (each.split(",") if isinstance(each, str) else each)}


@pytest.fixture
def route(request: pytest.FixtureRequest) -> tuple[int, bool]:
    """The major version, and whether a pooler stands before it."""
    found: tuple[int, bool] = request.param
    return found


@pytest.fixture
def server(route: tuple[int, bool], running: Callable[[int], Running]) -> LocalPostgres:
    return running(route[0]).server


@pytest.fixture
def databases(server: LocalPostgres, running: Callable[[int], Running]) -> Databases:
    return running(server.binaries.major).databases


@pytest.fixture
def direct_dsn(databases: Databases) -> Iterator[str]:
    """A migrated database of the test's own, for who looks at it from outside."""
    with databases.lend() as found:
        yield found


@pytest.fixture
def dsn(route: tuple[int, bool], direct_dsn: str, running: Callable[[int], Running]) -> str:
    """The same, as the product is given it: through the pooler, if one stands before the server."""
    major, pooled = route
    return running(major).pooler().way(direct_dsn) if pooled else direct_dsn


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
def connection(direct_dsn: str) -> Iterator[psycopg.Connection]:
    """Each statement a transaction of its own."""
    with psycopg.connect(direct_dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def lane(storage: PostgresStorage, connection: psycopg.Connection) -> Lane:
    return Lane(storage, connection)


@pytest.fixture(autouse=True)
def _every_count_is_true_at_the_end(request: pytest.FixtureRequest) -> Iterator[None]:
    if "direct_dsn" not in request.fixturenames:
        yield
        return
    dsn, databases = request.getfixturevalue("direct_dsn"), request.getfixturevalue("databases")
    yield
    check_invariants(databases.connection(dsn))
