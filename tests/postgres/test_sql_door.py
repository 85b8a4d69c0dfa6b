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
        ("delay", {"delay": "soon"}),
        ("delay", {"delay": "infinity"}),
        ("finish_timeout", {"finish_timeout": "two"}),
        ("run_at", {"run_at": "tomorrow week"}),
        ("priority", {"priority": 1e99}),
        ("max_attempts", {"max_attempts": "3.5"}),
        ("options", {"tenant": "a\0b"}),
        ("options", {"tenant": "a\ud800b"}),
        ("options", {"meta": {"a": "\\\0"}}),
    ],
)
def test_it_names_the_field_that_is_wrong_and_records_nothing(lane: Lane, field: str, call: dict[str, object]) -> None:
    lane.queues(Queue("work"))
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"^{field}: "):
        _trigger(lane.connection, **call)  # type: ignore[arg-type]

    assert lane.connection.execute("SELECT count(*) FROM runlane.run").fetchone() == (0,)


DIGITS = "9" * 4301
DEEP = "[" * 201 + "]" * 201


@pytest.mark.parametrize(
    "odd", [DIGITS, f"[-{DIGITS}.5]", DEEP, '{"a":' * 5000 + "1" + "}" * 5000], ids=["digits", "fraction", "lists", "objects"]
)
@pytest.mark.parametrize("field", ["payload", "meta", "trace"])
def test_json_that_python_cannot_read_is_refused(lane: Lane, field: str, odd: str) -> None:
    lane.queues(Queue("work"))
    payload, options = (odd, "{}") if field == "payload" else ("{}", f'{{"{field}":{{"a":{odd}}}}}')
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"^{field}: "):
        lane.connection.execute("SELECT runlane.trigger('t', %s::json, 'work', %s::json)", (payload, options))


def test_much_text_is_kept_however_it_looks(lane: Lane) -> None:
    lane.queues(Queue("work"))
    payload = {"digits": DIGITS, "brackets": DEEP, "escapes": '\\"[' * 1000, "list": [[[number]] for number in range(2_000)]}
    record = lane.storage.runs.get_run(RunId(_trigger(lane.connection, payload=json.dumps(payload), meta={"deep": payload})))

    assert record is not None
    assert (record.payload, record.meta) == (payload, {"deep": payload})


def test_what_was_written_past_the_doors_is_shown_as_its_text(lane: Lane) -> None:
    lane.queues(Queue("work"))
    run_id = RunId(_trigger(lane.connection))
    for odd in (DIGITS, "[" * 5000 + "]" * 5000):
        lane.connection.execute(
            "UPDATE runlane.run SET payload = %s::json, meta = %s::json WHERE run_id = %s", (odd, f'{{"a":{odd}}}', run_id)
        )
        record = lane.storage.runs.get_run(run_id)
        assert record is not None
        assert (record.payload, record.meta) == (odd, None)


def test_json_null_is_a_payload(lane: Lane) -> None:
    lane.queues(Queue("work"))
    record = lane.storage.runs.get_run(RunId(_trigger(lane.connection, payload="null")))

    assert record is not None
    assert record.payload is None
