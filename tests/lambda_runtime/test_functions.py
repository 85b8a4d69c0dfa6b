"""Every function works from its folder and its layers alone, and a cold start pays for nothing that it does not need."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from app import queues, tasks
from benchmarks.artifact import ROOT, Artifact
from benchmarks.lambda_runtime import ExecutionEnvironment, Function, HandlerFailed
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.adapters.sqs.envelope import encode_wakeup
from runlane.ports.stores import PublishResult, Wakeup
from runlane.runtime import Runlane
from runlane.services.lane import Lane
from tests.lambda_runtime.conftest import Start
from tests.waiting import until

FUNCTIONS = sorted(path.parent.name for path in (ROOT / "functions").glob("*/app.py"))
EVENTS: dict[str, Any] = {"worker": {"Records": []}, "maintenance": {}, "migrate": {}}
UNWANTED = {
    "boto3",
    "botocore.session",
    "aws_xray_sdk",
    "cryptography",
    "difflib",
    "typer",
    "rich",
    "http.client",
    "urllib.request",
    "tomllib",
}
UNWANTED_OF_OURS = (
    *("cli", "testing", "domain.event", "domain.records", "ports.maintenance", "ports.schedules", "ports.operations"),
    *("adapters.aws", "adapters.cloudformation", "adapters.local", "adapters.sqs.returning", "adapters.sqs.sources"),
    *(f"adapters.postgres.{name}" for name in ("health", "maintenance", "migrate", "operations", "queues", "runs", "schedules")),
    *(f"services.{name}" for name in ("drift", "maintenance", "operate", "resident", "run_now", "trigger")),
)
MOST_OF_OURS = 84
"""Modules of a first delivery; one more is a quarter of a millisecond of every cold start, if there is a dataclass in it a whole one."""
IMPORTED = re.compile(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", re.MULTILINE)


class Wire:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.bodies: list[str] = []

    def serves(self, queue: str) -> bool:
        return True

    def keeps_order(self, queue: str) -> bool:
        return False

    def publish(self, wakeups: tuple[Wakeup, ...]) -> tuple[PublishResult, ...]:
        self.bodies += [encode_wakeup("test", wakeup, datetime.now(UTC)) for wakeup in wakeups]
        return tuple(PublishResult(wakeup.run_id, published=True) for wakeup in wakeups)

    def close(self) -> None:
        pass

    def event(self) -> dict[str, Any]:
        """Of what was published first, which is then gone."""
        body = self.bodies.pop(0)
        return {"Records": [{"messageId": json.loads(body)["message"]["runId"], "body": body, "attributes": {}, "eventSource": "aws:sqs"}]}


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def client(dsn: str, wire: Wire) -> Iterator[Runlane]:
    lane = Lane(PostgresStorage(dsn), wire)
    catalog = [tasks.send_receipt, tasks.fetch_export]
    with closing(Runlane(lane=lane, queues=[queues.main, queues.exports], tasks=catalog, environment="test")) as runlane:
        runlane.queues.put_in_force(actor="test")
        yield runlane


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_answers_with_nothing_but_its_folder_its_layers_and_what_lambda_brings(function: str, start: Start) -> None:
    assert isinstance(start(function).invoke(EVENTS[function]), dict)


def test_a_package_that_is_in_no_layer_is_missed(artifact: Artifact) -> None:
    """So that the test above can fail: nothing of this process's own packages, or of the interpreter's, is found by accident."""
    alone = Function(artifact.python, artifact.brought, artifact.code, (artifact.runtime,), "worker.app.handler")
    environment = ExecutionEnvironment(alone)
    try:
        with pytest.raises(HandlerFailed, match="No module named 'psycopg'"):
            environment.invoke({})
    finally:
        environment.close()


def imported(environment: ExecutionEnvironment) -> set[str]:
    """Every module so far, and every package of one."""
    names = IMPORTED.findall(environment.output())
    return {*names, *(name.split(".")[0] for name in names)}


def test_a_delivery_that_publishes_nothing_imports_no_boto3_and_no_tracer_and_connects_once(
    start: Start, client: Runlane, wire: Wire, connection: psycopg.Connection
) -> None:
    result = client.trigger(tasks.send_receipt, {"invoice_id": "1", "address": "a@example.com"})
    before = sessions(connection)
    worker = start("worker", "-X", "importtime")
    assert worker.invoke(wire.event()) == {"batchItemFailures": []}
    assert client.runs.get(result.run.run_id).status == "succeeded"
    assert sessions(connection) - before == 1
    worker.close()
    found = imported(worker)
    assert "psycopg" in found, "the report is read"
    # Powertools imports the face of its tracer, and botocore's, which are small.
    assert found & UNWANTED == set()
    ours = {name for name in found if name.partition(".")[0] == "runlane"}
    assert {name for name in ours if name.removeprefix("runlane.").startswith(UNWANTED_OF_OURS)} == set()
    assert len(ours) <= MOST_OF_OURS, sorted(ours)


def test_a_delivery_that_publishes_imports_boto3(start: Start, client: Runlane, wire: Wire) -> None:
    """It goes on without an answer: what is due later, maintenance sends on its way."""
    result = client.trigger(tasks.fetch_export, tasks.FetchExport(export_id=f"export-{time.time() + 3600:.3f}"))
    worker = start("worker", "-X", "importtime", AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert worker.invoke(wire.event()) == {"batchItemFailures": []}
    assert client.runs.get(result.run.run_id).status == "released"
    worker.close()
    assert "boto3" in imported(worker)


def test_maintenance_ticks_as_it_is_shipped(start: Start, client: Runlane) -> None:
    answer = start("maintenance").invoke({})
    assert answer["failed"] == []


def test_a_snapshot_holds_no_connection_and_what_is_made_of_it_has_its_own(
    start: Start, client: Runlane, wire: Wire, connection: psycopg.Connection
) -> None:
    client.trigger(tasks.send_receipt, {"invoice_id": "1", "address": "a@example.com"})
    before = sessions(connection)
    worker = start("worker", "-X", "importtime", AWS_LAMBDA_INITIALIZATION_TYPE="snap-start")
    worker.await_snapshot()
    assert sessions(connection) == before
    until(lambda: "app.tasks" in imported(worker))  # What can be done before is done before.
    worker.restore()
    assert worker.invoke(wire.event()) == {"batchItemFailures": []}
    assert sessions(connection) - before == 1


def sessions(connection: psycopg.Connection) -> int:
    """Of others on this database."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])
