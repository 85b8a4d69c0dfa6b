from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runlane import bootstrap
from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.local.sqs import LocalSqs
from runlane.adapters.postgres.migrate import migrate
from tests.acceptance.failures.stage import Stage
from tests.postgres.invariants import check_invariants

_NUMBERS = count(1)

OpenStage = Callable[..., Stage]
"""`(server=…, lease="2s", visibility="1s", …)`: a migrated database and a queue of the test's own."""


@pytest.fixture(scope="session")
def sqs() -> Iterator[LocalSqs]:
    with LocalSqs() as server:
        yield server


@pytest.fixture(scope="session")
def server() -> Iterator[LocalPostgres]:
    # What a killed client committed must not be in a buffer; that the machine survives may be assumed.
    with LocalPostgres(durable=False, settings={"synchronous_commit": "on", "autovacuum": "off"}) as running:
        _administer(running, "CREATE DATABASE migrated")
        with psycopg.connect(make_conninfo(running.dsn, dbname="migrated"), autocommit=True) as connection:
            migrate(connection, schema="runlane", environment="test")
        yield running
        running.kill()


@pytest.fixture
def open_stage(server: LocalPostgres, sqs: LocalSqs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenStage]:
    opened: list[Stage] = []

    def build(*, lease: str = "2s", on: LocalPostgres = server, max_receive_count: int = 50, **variables: str) -> Stage:
        queue = sqs.create_queue(f"work-{uuid4().hex}", visibility_timeout=timedelta(seconds=1), max_receive_count=max_receive_count)
        name = f"stage_{next(_NUMBERS)}"
        _administer(on, f"CREATE DATABASE {name}" + (" TEMPLATE migrated STRATEGY file_copy" if on is server else ""))
        dsn = make_conninfo(on.dsn, dbname=name)
        given = {
            **sqs.variables,
            "DATABASE_URL": dsn,
            "NOTES": str(tmp_path),
            "RUNLANE_APP": "tests.acceptance.failures.tasks:runlane",
            "RUNLANE_ENVIRONMENT": "test",
            "RUNLANE_LEASE_DURATION": lease,
            "RUNLANE_QUEUE_URL": queue.url,
            **variables,
        }
        for variable, value in given.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME", raising=False)
        bootstrap.migrate()
        stage = Stage(bootstrap.load_app(given["RUNLANE_APP"]), sqs, queue, dsn, tmp_path, given)
        opened.append(stage)
        return stage

    yield build
    for stage in opened:
        stage.end()
        with psycopg.connect(stage.dsn, autocommit=True) as connection:
            check_invariants(connection)


@pytest.fixture
def open_fifo_stage(open_stage: OpenStage, sqs: LocalSqs) -> OpenStage:
    """As `open_stage`, with the queue `ordered` on FIFO by key; a worker receives from there and from the timers queue."""

    def build(**options: str) -> Stage:
        # As deployed, messages come back when the lease of a worker that died with them has long expired.
        names = [f"{uuid4().hex}{suffix}" for suffix in (".fifo", "-timers")]
        fifo, timers = (sqs.create_queue(name, visibility_timeout=timedelta(seconds=3), max_receive_count=50) for name in names)
        stage = open_stage(
            RUNLANE_QUEUE_URLS=json.dumps({"ordered": fifo.url}),
            RUNLANE_MESSAGE_GROUPS='{"ordered": "key"}',
            RUNLANE_TIMERS_QUEUE_URL=timers.url,
            **options,
        )
        stage.sources = (fifo.url, timers.url)
        return stage

    return build


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """What the workers logged, beside a failure."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None and (folder / "log").exists():
        report.sections.append(("worker log", (folder / "log").read_text()[-4000:]))
    return report


def _administer(server: LocalPostgres, statement: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(statement.encode())
