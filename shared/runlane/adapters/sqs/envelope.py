"""The wakeup's wire format, version 1: compact JSON that names a run and never carries its payload."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pydantic_core import SchemaValidator, ValidationError
from pydantic_core import core_schema as schema

from runlane.domain.errors import ContractError
from runlane.domain.ids import parse_run_id
from runlane.ports.stores import Wakeup
from runlane.ports.transport import DeliveryMessage

MAX_BODY_BYTES = 256 * 1024
"""The largest envelope written or read; SQS itself would let 1 MiB through."""

VERSION = 1

_SHOWN_FAULTS = 5
_SHOWN_NAME = 64

# ASCII only: SQS refuses some Unicode characters, and length in characters is length in bytes.
_encode_json = json.JSONEncoder(separators=(",", ":")).encode
_TAIL = f'}},"type":"runlane.wakeup","version":{VERSION}}}'

_NAME = schema.str_schema(min_length=1, max_length=255, pattern=r"^[^:\x00]+$")
_STRICT = schema.CoreConfig(strict=True, hide_input_in_errors=True)


def _object(required: dict[str, Any], *, extra: schema.ExtraBehavior = "forbid", **optional: Any) -> schema.CoreSchema:
    fields = {name: schema.typed_dict_field(of) for name, of in required.items()}
    fields |= {name: schema.typed_dict_field(of, required=False) for name, of in optional.items()}
    return schema.typed_dict_schema(fields, extra_behavior=extra, config=_STRICT)


# The validator's own terms and no models: pydantic took a cold start 10 ms to come to the same from annotations. Dictionaries, since every
# wakeup is parsed, and making three objects of it would cost more than all the checks.
_parse_envelope = SchemaValidator(
    _object(
        {
            "message": _object(
                {
                    # Unknown keys are dropped here, not refused, as other writers of version 1 may add some.
                    "environment": _object({"name": _NAME}, extra="ignore"),
                    "queue": _NAME,
                    "runId": schema.str_schema(max_length=36),
                },
                requestedAt=schema.datetime_schema(),
                traceCarrier=schema.dict_schema(schema.str_schema(), schema.str_schema()),
            ),
            "type": schema.literal_schema(["runlane.wakeup"]),
            # Not a literal, which would take `true`.
            "version": schema.int_schema(ge=VERSION, le=VERSION),
        }
    )
).validate_json


def encode_wakeup(environment: str, wakeup: Wakeup, requested_at: datetime) -> str:
    """The body for SQS, pure ASCII, at most `MAX_BODY_BYTES` long. `requested_at` is aware.

    A trace carrier that would not fit is left out: a run that is not traced is better than one that is never woken.
    """
    # Pieced together, as there may be thousands at once; an id has nothing to escape.
    message = f'{_head(environment, wakeup.queue)}{wakeup.run_id}","requestedAt":"{_instant(requested_at)}"'
    if not wakeup.trace:
        return message + _TAIL
    traced = f'{message},"traceCarrier":{_encode_json(dict(wakeup.trace))}{_TAIL}'
    return traced if len(traced) <= MAX_BODY_BYTES else message + _TAIL


def parse_wakeup(body: str, environment: str) -> DeliveryMessage:
    """What a body asks for.

    `ContractError`: `envelope_invalid` when it is no envelope of version 1, `environment_foreign` when another
    environment's. Both name the field and show nothing of the body beyond the names of unknown keys.
    """
    message = _envelope(_bounded(body))["message"]
    if message["environment"]["name"] != environment:
        raise ContractError(
            "environment_foreign",
            f"message.environment.name: not {environment!r}, the environment served here; bind each environment to queues of its own",
            meta={"field": "message.environment.name"},
        )
    return DeliveryMessage(parse_run_id(message["runId"]), message["queue"], message.get("traceCarrier") or None)


@lru_cache(maxsize=64)
def _head(environment: str, queue: str) -> str:
    return f'{{"message":{{"environment":{{"name":{_encode_json(environment)}}},"queue":{_encode_json(queue)},"runId":"'


@lru_cache(maxsize=4)
def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bounded(body: object) -> bytes:
    if not isinstance(body, str):
        raise _invalid([f"body: text expected, not {type(body).__name__}"])
    data = body.encode("utf-8", "surrogatepass")
    if len(data) > MAX_BODY_BYTES:
        raise _invalid([f"body: {len(data)} bytes, more than the {MAX_BODY_BYTES} of an envelope"])
    return data


def _envelope(data: bytes) -> dict[str, Any]:
    try:
        envelope: dict[str, Any] = _parse_envelope(data)
        return envelope
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        # Not chained: what pydantic knows of the input stays out of logs.
        raise _invalid([f"{_path(fault['loc'])}: {fault['msg']}" for fault in details[:_SHOWN_FAULTS]]) from None


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(ascii(str(part)[:_SHOWN_NAME])[1:-1] for part in location[:4]) or "body"


def _invalid(faults: list[str]) -> ContractError:
    return ContractError("envelope_invalid", f"not a wakeup of version {VERSION}: {'; '.join(faults)}", meta={"faults": faults})
