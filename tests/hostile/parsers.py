"""Every parser of text that comes from outside, and what each owes to any text: an answer or an error of ours, in clean words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from runlane import task
from runlane.adapters.postgres.credentials import read_address
from runlane.adapters.postgres.runs import _read_cursor
from runlane.adapters.sqs.envelope import parse_wakeup
from runlane.cli.payload import read_payload
from runlane.cli.times import ago
from runlane.domain.durations import parse_duration
from runlane.domain.errors import ContractError, RunlaneError
from runlane.domain.ids import parse_run_id, validate_key, validate_name
from runlane.domain.records import RunFilter
from runlane.domain.retention import read_retention
from runlane.domain.schedule import Schedule
from runlane.services.payload import PayloadCodec, canonical_hash
from runlane.services.schedules.cron import Cron, cron_fault
from runlane.settings import _VARIABLES, read_settings

LONGEST_MESSAGE = 4_000
_SOME_TIME = datetime(2026, 3, 29, tzinfo=UTC)
_LOCAL = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
_CODEC = PayloadCodec()


class Order(BaseModel):
    number: int
    note: str = ""


@task("hostile.order")
def order(payload: Order) -> None: ...


@task("hostile.anything")
def anything(payload: Any) -> None: ...


def cron(text: str) -> None:
    Schedule("s", cron=text)
    if fault := cron_fault(text):
        raise ContractError("cron_invalid", fault)
    Cron(text, "Europe/Berlin").next_after(_SOME_TIME)


def payload(text: str) -> None:
    # A file or the standard input is no parser.
    given = read_payload(text) if text[:1] not in ("@", "-") else text
    for known in (order, anything):
        value, stored = _CODEC.prepare(known, given)
        assert _CODEC.decode(known, stored) == value
        canonical_hash(stored)


def settings(text: str) -> None:
    for variable in _VARIABLES.values():
        refused = _error(lambda variable=variable: read_settings({**_LOCAL, variable: text}))
        assert refused is None or variable in str(refused) or variable.startswith("RUNLANE_DATABASE"), variable


PARSERS: Mapping[str, Callable[[str], object]] = {
    "envelope": lambda text: parse_wakeup(text, "production"),
    "duration": parse_duration,
    "every": lambda text: Schedule("s", every=text, jitter=text),
    "cron": cron,
    "timezone": lambda text: Schedule("s", cron="* * * * *", timezone=text),
    "time": lambda text: ago(text, "--created-after"),
    "cursor": lambda text: _read_cursor(text, RunFilter()),
    "run id": parse_run_id,
    "name": lambda text: validate_name(text, "queue"),
    "key": lambda text: validate_key(text, "tenant").encode(),
    "retention": read_retention,
    "settings": settings,
    "address": read_address,
    "payload": payload,
    "stored payload": lambda text: _CODEC.decode(order, text),
    "result": lambda text: _CODEC.encode_result({text: [text]}),
}


def feed(parser: str, text: str) -> RunlaneError | None:
    """What the parser refuses the text with; fails for any other error, and for a message that a log or a terminal could not take."""
    refused = _error(lambda: PARSERS[parser](text))
    if refused is not None:
        message = str(refused)
        assert message.replace("\n", "").isprintable(), message
        assert len(message) <= LONGEST_MESSAGE, message[:200]
    return refused


def _error(call: Callable[[], object]) -> RunlaneError | None:
    try:
        call()
    except RunlaneError as error:
        return error
    return None
