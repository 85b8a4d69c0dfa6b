"""What is written into SQS, and what is refused when it comes back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.adapters.sqs.envelope import MAX_BODY_BYTES, encode_wakeup, parse_wakeup
from runlane.domain.errors import ContractError
from runlane.domain.ids import RunId
from runlane.ports.transport import DeliveryMessage
from tests.sqs.wakeups import wakeup

RUN = RunId("01990000-0000-7000-8000-000000000001")
NOW = datetime(2026, 1, 2, 3, 4, 5, 6789, UTC)
BODY = (
    '{"message":{"environment":{"name":"production"},"queue":"emails","runId":"01990000-0000-7000-8000-000000000001",'
    '"requestedAt":"2026-01-02T03:04:05.006Z","traceCarrier":{"traceparent":"00-x"}},"type":"runlane.wakeup","version":1}'
)
NAMES = st.text(st.characters(exclude_characters=":\0", exclude_categories=["Cs"]), min_size=1, max_size=255)


def envelope(**changes: Any) -> str:
    """The body above with changes: a dotted path (dots written `__`) to the new value; `...` removes it."""
    value = json.loads(BODY)
    for path, change in changes.items():
        *parents, last = path.split("__")
        place = value
        for parent in parents:
            place = place[parent]
        if change is ...:
            del place[last]
        else:
            place[last] = change
    return json.dumps(value)


def test_the_wire_format_is_version_1_to_the_byte() -> None:
    assert encode_wakeup("production", wakeup(run_id=RUN, trace={"traceparent": "00-x"}), NOW) == BODY


def test_a_body_says_run_queue_and_trace() -> None:
    assert parse_wakeup(BODY, "production") == DeliveryMessage(RUN, "emails", {"traceparent": "00-x"})


def test_requested_at_is_written_in_utc() -> None:
    local = datetime(2026, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    assert '"requestedAt":"2026-01-02T03:04:05.000Z"' in encode_wakeup("production", wakeup(), local)


def test_the_optional_fields_may_be_missing() -> None:
    body = envelope(message__requestedAt=..., message__traceCarrier=...)
    assert parse_wakeup(body, "production") == DeliveryMessage(RUN, "emails", None)


def test_unknown_keys_of_the_environment_are_dropped() -> None:
    assert parse_wakeup(envelope(message__environment={"name": "production", "region": "x"}), "production").run_id == RUN


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"extra": 1}, "extra"),
        ({"message__payload": {}}, "message.payload"),
        ({"type": "runlane.other"}, "type"),
        ({"type": ...}, "type"),
        ({"version": 2}, "version"),
        ({"version": "1"}, "version"),
        ({"version": True}, "version"),
        ({"version": ...}, "version"),
        ({"message": ...}, "message"),
        ({"message": "text"}, "message"),
        ({"message__environment": "production"}, "message.environment"),
        ({"message__environment__name": ""}, "message.environment.name"),
        ({"message__environment__name": 5}, "message.environment.name"),
        ({"message__queue": "a:b"}, "message.queue"),
        ({"message__queue": "nul\0"}, "message.queue"),
        ({"message__queue": "q" * 256}, "message.queue"),
        ({"message__queue": ...}, "message.queue"),
        ({"message__runId": ...}, "message.runId"),
        ({"message__runId": "r" * 37}, "message.runId"),
        ({"message__runId": "run_123"}, "run id"),
        ({"message__requestedAt": None}, "message.requestedAt"),
        ({"message__requestedAt": 5}, "message.requestedAt"),
        ({"message__requestedAt": "yesterday"}, "message.requestedAt"),
        ({"message__traceCarrier": {"a": 1}}, "message.traceCarrier.a"),
        ({"message__traceCarrier": None}, "message.traceCarrier"),
    ],
)
def test_a_misfit_is_refused_by_the_name_of_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ContractError) as refused:
        parse_wakeup(envelope(**changes), "production")
    assert field in refused.value.message
    assert not refused.value.retryable


@pytest.mark.parametrize("body", ["", "null", "[]", "{", "[" * 10_000, "\ud800", "{}", None, b"{}", 5])
def test_what_is_no_envelope_is_refused(body: Any) -> None:
    with pytest.raises(ContractError) as refused:
        parse_wakeup(body, "production")
    assert refused.value.code == "envelope_invalid"


def test_another_environments_wakeup_is_refused_and_not_echoed() -> None:
    with pytest.raises(ContractError, match=r"message\.environment\.name") as refused:
        parse_wakeup(envelope(message__environment__name="staging"), "production")
    assert refused.value.code == "environment_foreign"
    assert "staging" not in refused.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"x" * 100_000: 1},
        {"message__queue": "x" * 100_000},
        {"message__runId": "x" * 100_000},
        {"message__environment__name": "x" * 100_000},
        {"message__traceCarrier": {"x" * 100_000: 1}},
        {"message__traceCarrier": {f"{i}{'x' * 1000}": i for i in range(100)}},
        {"type": "x" * 100_000},
        {"version": "x" * 100_000},
        {"version": "x" * 300_000},
    ],
)
def test_an_error_is_short_however_large_the_body(changes: dict[str, Any]) -> None:
    with pytest.raises(ContractError) as refused:
        parse_wakeup(envelope(**changes), "production")
    assert len(str(refused.value)) < 1000
    assert len(json.dumps(refused.value.meta)) < 1000


def test_the_bound_is_on_bytes_and_exact() -> None:
    filling = MAX_BODY_BYTES - len(envelope(message__traceCarrier={"a": ""}))
    assert parse_wakeup(envelope(message__traceCarrier={"a": "x" * filling}), "production").run_id == RUN
    with pytest.raises(ContractError, match="body"):
        parse_wakeup(envelope(message__traceCarrier={"a": "x" * (filling + 1)}), "production")


def test_a_trace_that_does_not_fit_is_left_out_so_that_the_run_is_woken() -> None:
    body = encode_wakeup("production", wakeup(run_id=RUN, trace={"a": "x" * MAX_BODY_BYTES}), NOW)
    assert parse_wakeup(body, "production") == DeliveryMessage(RUN, "emails", None)


@given(environment=NAMES, queue=NAMES, run=st.uuids(), trace=st.dictionaries(NAMES, st.text(st.characters(exclude_categories=["Cs"]))))
def test_what_was_encoded_is_parsed_back(environment: str, queue: str, run: object, trace: dict[str, str]) -> None:
    body = encode_wakeup(environment, wakeup(queue, run_id=RunId(str(run)), trace=trace), NOW)
    assert body.isascii()
    assert parse_wakeup(body, environment) == DeliveryMessage(RunId(str(run)), queue, trace or None)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
PLACES = [
    "message",
    "type",
    "version",
    "extra",
    *(f"message__{key}" for key in ("environment", "queue", "runId", "requestedAt", "traceCarrier")),
]


def assert_answered(body: str) -> None:
    assert len(str(message_or_refusal(body))) < 10_000


def message_or_refusal(body: str) -> DeliveryMessage | ContractError:
    try:
        return parse_wakeup(body, "production")
    except ContractError as refused:
        return refused


@given(st.text(st.characters()) | JSON_VALUES.map(json.dumps))
def test_any_text_is_a_message_or_a_contract_error(body: str) -> None:
    assert_answered(body)


@given(st.dictionaries(st.sampled_from(PLACES[1:]), JSON_VALUES, min_size=1))
def test_any_change_of_an_envelope_is_a_message_or_a_contract_error(changes: dict[str, Any]) -> None:
    assert_answered(envelope(**changes))


@given(st.integers(0, len(BODY)), st.integers(0, 20), st.text(st.characters(), max_size=5))
def test_any_damage_of_a_body_is_a_message_or_a_contract_error(start: int, length: int, noise: str) -> None:
    assert_answered(BODY[:start] + noise + BODY[start + length :])
