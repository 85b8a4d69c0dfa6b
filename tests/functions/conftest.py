from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import psycopg
import pytest

from runlane import bootstrap
from runlane.adapters.local.binaries import installed_postgres
from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.postgres.migrate import migrate
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.adapters.sqs.envelope import parse_wakeup
from runlane.domain.queue import Queue
from runlane.runtime import Runlane
from runlane.services.lane import Lane
from tests.functions import catalog
from tests.functions.world import ENVIRONMENT, Wire, World
from tests.postgres import factories
from tests.postgres.invariants import check_invariants

SETTINGS = {"deadlock_timeout": "200ms", "autovacuum_naptime": "5s"}
HANG_UP = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
EMPTY = """
DO $$ DECLARE t text; BEGIN
    FOR t IN SELECT relname FROM pg_class WHERE relnamespace = 'runlane'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
             AND relname NOT IN ('migration', 'environment')
    LOOP EXECUTE format('DELETE FROM runlane.%I', t); END LOOP;
    DROP SCHEMA IF EXISTS caller CASCADE;
END $$
"""

OpenWorld = Callable[..., World]
"""`(tasks, queues=(main,), ordered=(), **options of Runlane)`: the environment's runtime, its queues in force."""


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[int], LocalPostgres]]:
    """Running servers by major version, each with a migrated schema in its one database."""
    with ExitStack() as running:
        installed = {binaries.major for binaries in installed_postgres()}

        @cache
        def start(major: int) -> LocalPostgres:
            if major not in installed:
                pytest.skip(f"Postgres {major} is not installed")
            server = running.enter_context(LocalPostgres(major=major, durable=False, settings=SETTINGS))
            # Nothing of it is wanted at the end, so nothing is written out.
            running.callback(server.kill)
            with psycopg.connect(server.socket_dsn, autocommit=True) as connection:
                migrate(connection, schema="runlane", environment=ENVIRONMENT)
            return server

        yield start


@pytest.fixture
def major() -> int:
    """The Postgres version; a test that has to hold on others too is parametrized with `major`."""
    return 18


@pytest.fixture
def server(servers: Callable[[int], LocalPostgres], major: int) -> LocalPostgres:
    return servers(major)


@pytest.fixture
def dsn(server: LocalPostgres) -> Iterator[str]:
    """An empty schema. Emptied by deleting, which takes milliseconds where a database of the test's own takes half a second."""
    yield server.socket_dsn
    with psycopg.connect(server.socket_dsn, autocommit=True) as connection:
        connection.execute(HANG_UP.encode())
        connection.execute(EMPTY.encode())


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    """Each statement a transaction of its own; at the end every count must be true."""
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened
        check_invariants(opened)


@pytest.fixture
def open_world(dsn: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenWorld]:
    storage = PostgresStorage(dsn)

    def build(tasks: Iterable[Any] = (), queues: Iterable[Queue] = (Queue("main", default=True),), **options: Any) -> World:
        wire = Wire(options.pop("ordered", ()))
        lane = Lane(options.pop("storage", None) or PostgresStorage(dsn), wire, parse_wakeup)
        monkeypatch.setattr(catalog, "build", lambda: Runlane(lane=lane, queues=queues, tasks=tasks, environment=ENVIRONMENT, **options))
        _forget_runtime()
        runlane = bootstrap.runtime()
        runlane.queues.put_in_force(actor="test")
        return World(runlane, wire, factories.Lane(storage, connection))

    monkeypatch.setenv("RUNLANE_APP", "tests.functions.catalog:current")
    monkeypatch.setenv("DATABASE_URL", dsn)
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME", raising=False)
    yield build
    _forget_runtime()
    storage.close()


def _forget_runtime() -> None:
    if bootstrap.runtime.cache_info().currsize:
        bootstrap.runtime().close()
    bootstrap.runtime.cache_clear()
