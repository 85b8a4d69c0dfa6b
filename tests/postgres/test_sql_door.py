"""`runlane.trigger`, the door for callers that are not Python, checks what the Python door checks."""

from __future__ import annotations

import json

import psycopg
import pytest

from runlane.domain.ids import RunId
from runlane.domain.queue import Queue
from tests.postgres.factories import Lane


def _trigger(
    connection: psycopg.Connection, task: str | None = "t", payload: str | None = "{}", queue: str = "work", **options: object
) -> str:
    row = connection.execute("SELECT runlane.trigger(%s, %s::json, %s, %s::json)", (task, payload, queue, json.dumps(options))).fetchone()
    assert row is not None
    return str(row[0])


def test_it_records_a_run_with_every_option(lane: Lane) -> None:
    lane.queues(Queue("work"))
    options = {
        "tenant": "acme",
        "concurrency_key": "k",
        "priority": 60,
        "delay": "1 hour",
        "idempotency_key": "i",
        "idempotency_ttl": "1 day",
        "singleton_key": "s",
        "max_attempts": 5,
        "start_timeout": "2 hours",
        "finish_timeout": "3 hours",
        "actor": "importer",
        "trace": {"traceparent": "00-1"},
        "meta": {"source": "csv"},
    }
    run_id = _trigger(lane.connection, **options)
    record = lane.storage.runs.get_run(RunId(run_id))

    assert record is not None
    assert (record.tenant, record.concurrency_key, record.priority, record.max_attempts) == ("acme", "k", 60, 5)
    assert (record.trace, record.meta, record.actor) == ({"traceparent": "00-1"}, {"source": "csv"}, "importer")
    assert _trigger(lane.connection, **options) == run_id


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("task", {"task": None}),
        ("task", {"task": "a:b"}),
        ("task", {"task": "x" * 256}),
        ("payload", {"payload": None}),
        ("payload", {"payload": json.dumps("x" * 262_144)}),
        ("options", {"colour": "red"}),
        ("delay, run_at", {"delay": "1 s", "run_at": "2030-01-01Z"}),
        ("delay", {"delay": "-1 s"}),
        ("delay", {"delay": "200 years"}),
        ("run_at", {"run_at": "infinity"}),
        ("run_at", {"run_at": "20000-01-01Z"}),
        ("start_timeout", {"start_timeout": "-1 s"}),
        ("priority", {"priority": 601}),
        ("max_attempts", {"max_attempts": 0}),
        ("tenant", {"tenant": ""}),
        ("concurrency_key", {"concurrency_key": "x" * 256}),
        ("singleton_mode", {"singleton_mode": "latest"}),
        ("singleton_mode", {"singleton_mode": "newest", "singleton_key": "s"}),
        ("trace", {"trace": [1]}),
        ("meta", {"meta": "x"}),
    ],
)
def test_it_names_the_field_that_is_wrong_and_records_nothing(lane: Lane, field: str, call: dict[str, object]) -> None:
    lane.queues(Queue("work"))
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"^{field}: "):
        _trigger(lane.connection, **call)  # type: ignore[arg-type]

    assert lane.connection.execute("SELECT count(*) FROM runlane.run").fetchone() == (0,)


def test_json_null_is_a_payload(lane: Lane) -> None:
    lane.queues(Queue("work"))
    record = lane.storage.runs.get_run(RunId(_trigger(lane.connection, payload="null")))

    assert record is not None
    assert record.payload is None
