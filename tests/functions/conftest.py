from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from runlane import bootstrap
from runlane.adapters.sqs.envelope import parse_wakeup
from runlane.domain.queue import Queue
from runlane.runtime import Runlane
from runlane.services.lane import Lane
from tests.conftest import Running
from tests.functions import catalog
from tests.functions.world import ENVIRONMENT, Wire, World
from tests.postgres import factories
from tests.postgres.databases import Databases
from tests.postgres.invariants import check_invariants

OpenWorld = Callable[..., World]
"""`(tasks, queues=(main,), ordered=(), **options of Runlane)`: the environment's runtime, its queues in force."""


@pytest.fixture
def major() -> int:
    """The Postgres version; a test that has to hold on others too is parametrized with `major`."""
    return 18


@pytest.fixture
def databases(running: Callable[[int], Running], major: int) -> Databases:
    return running(major).databases


@pytest.fixture
def dsn(databases: Databases) -> Iterator[str]:
    """A migrated database of the test's own."""
    with databases.lend() as found:
        yield found
        databases.connection(found).execute(b"DROP SCHEMA IF EXISTS caller CASCADE")


@pytest.fixture
def connection(dsn: str, databases: Databases) -> Iterator[psycopg.Connection]:
    """Each statement a transaction of its own; at the end every count must be true."""
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened
    check_invariants(databases.connection(dsn))


@pytest.fixture
def open_world(dsn: str, connection: psycopg.Connection, databases: Databases, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenWorld]:
    # The first belongs to the test itself.
    places = count(2)

    def build(tasks: Iterable[Any] = (), queues: Iterable[Queue] = (Queue("main", default=True),), **options: Any) -> World:
        wire = Wire(options.pop("ordered", ()))
        storage = options.pop("storage", None) or databases.storages(dsn, next(places))[-1]
        lane = Lane(storage, wire, parse_wakeup)
        monkeypatch.setattr(catalog, "build", lambda: Runlane(lane=lane, queues=queues, tasks=tasks, environment=ENVIRONMENT, **options))
        _forget_runtime()
        runlane = bootstrap.runtime()
        runlane.start()  # As a resident worker does; what it would tell is told.
        runlane.queues.put_in_force(actor="test")
        return World(runlane, wire, factories.Lane(databases.storage(dsn), connection))

    monkeypatch.setenv("RUNLANE_APP", "tests.functions.catalog:current")
    monkeypatch.setenv("DATABASE_URL", dsn)
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME", raising=False)
    yield build
    _forget_runtime()


def _forget_runtime() -> None:
    if bootstrap.runtime.cache_info().currsize:
        bootstrap.runtime().close()
    bootstrap.runtime.cache_clear()
