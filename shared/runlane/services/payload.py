"""Payloads and results as JSON text: validated on the way in, validated again on the way out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from runlane.domain.errors import PAYLOAD_TOO_LARGE, RESULT_TOO_LARGE, ContractError, PayloadError
from runlane.domain.task import Task
from runlane.services.json_faults import LONGEST_NUMBER, json_faults

MAX_BYTES = 256 * 1024
RESULT_INVALID = "result_invalid"

AnyTask = Task[Any, Any]

_SUSPECTS = re.compile(rb"null|NaN|Infinity|\\u0000")
"""What a lossy rendering leaves in the text; its absence proves that no slow look is needed."""
_SUSPECT_NUMBER = re.compile(rb"[0-9]{%d}" % (LONGEST_NUMBER + 1))


class PayloadCodec:
    """JSON text of payloads and results, each at most `max_bytes` of UTF-8 (default 256 KiB). Safe to share between threads."""

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._adapters: dict[str, TypeAdapter[Any]] = {}

    def prepare(self, task: AnyTask, payload: Any) -> tuple[Any, str]:
        """The payload as the handler will see it, and its text; `PayloadError` with fields, or `payload_too_large`."""
        adapter = self._adapter(task)
        text = self._bounded(_dump(task, adapter, _validated(task, adapter, payload)))
        # Read back, so that what a handler could not be given is refused now and not at its attempt.
        return self.decode(task, text), text

    def encode(self, task: AnyTask, payload: Any) -> str:
        return self.prepare(task, payload)[1]

    def decode(self, task: AnyTask, text: str) -> Any:
        """The payload that stored text means; `PayloadError` when it no longer fits the task."""
        try:
            return self._adapter(task).validate_json(text)
        except ValidationError as error:
            raise _misfit(task, error) from None

    def encode_result(self, value: Any) -> str | None:
        """A handler's result as text, None for None; `ContractError` `result_invalid` or `result_too_large`."""
        if value is None:
            return None
        text = _render_result(value)
        if len(text) > self._max_bytes:
            raise _too_large(RESULT_TOO_LARGE, "result", len(text), self._max_bytes)
        return text.decode()

    def _adapter(self, task: AnyTask) -> TypeAdapter[Any]:
        adapter = self._adapters.get(task.id)
        if adapter is None:
            adapter = self._adapters[task.id] = TypeAdapter(task.payload_type)
        return adapter

    def _bounded(self, text: bytes) -> str:
        if len(text) > self._max_bytes:
            raise _too_large(PAYLOAD_TOO_LARGE, "payload", len(text), self._max_bytes)
        return text.decode()


@cache
def _anything() -> TypeAdapter[Any]:
    return TypeAdapter(Any)


def canonical_hash(text: str) -> str:
    """Hex SHA-256 of JSON text with its keys sorted and no space: equal payloads have equal hashes."""
    canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(canonical.encode()).hexdigest()


def _validated(task: AnyTask, adapter: TypeAdapter[Any], payload: Any) -> Any:
    try:
        return adapter.validate_python(payload)
    except ValidationError as error:
        raise _misfit(task, error) from None


def _dump(task: AnyTask, adapter: TypeAdapter[Any], value: Any) -> bytes:
    try:
        text = adapter.dump_json(value, by_alias=True, warnings=False)
    except PydanticSerializationError as error:
        raise _unstorable(task, _python_faults(adapter, value, error)) from None
    if _is_suspect(text) and (faults := _python_faults(adapter, value, None)):
        raise _unstorable(task, faults)
    return text


def _is_suspect(text: bytes) -> bool:
    return _SUSPECTS.search(text) is not None or (len(text) > LONGEST_NUMBER and _SUSPECT_NUMBER.search(text) is not None)


def _python_faults(adapter: TypeAdapter[Any], value: Any, error: Exception | None) -> list[dict[str, str]]:
    """Look at both renderings: the JSON one has what serializers made, the Python one has the numbers that became null."""
    for mode in ("json", "python"):
        try:
            if faults := list(json_faults(adapter.dump_python(value, mode=mode, by_alias=True, warnings=False))):
                return faults
        except RecursionError:
            return [{"path": "", "message": "is nested too deeply, or contains itself"}]
        except (PydanticSerializationError, ValueError) as failure:
            error = failure
    return [] if error is None else [{"path": "", "message": str(error)}]


def _render_result(value: Any) -> bytes:
    try:
        text = to_json(value, by_alias=True, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError) as error:
        raise ContractError(RESULT_INVALID, f"result: {_first(_result_faults(value)) or error}") from None
    if _is_suspect(text) and (fault := _first(_result_faults(value))):
        raise ContractError(RESULT_INVALID, f"result: {fault}")
    return text


def _result_faults(value: Any) -> Iterable[Mapping[str, str]]:
    """Both renderings again: what a model makes null in JSON is a number still in the Python one."""
    try:
        yield from json_faults(to_jsonable_python(value, by_alias=True, inf_nan_mode="constants"))
        yield from json_faults(_anything().dump_python(value, by_alias=True, warnings=False))
    except (PydanticSerializationError, ValueError):
        return


def _first(faults: Iterable[Mapping[str, str]]) -> str | None:
    return next((f"{fault['path']} {fault['message']}".lstrip() for fault in faults), None)


def _misfit(task: AnyTask, error: ValidationError) -> PayloadError:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return _unstorable(task, [{"path": ".".join(map(str, fault["loc"])), "message": fault["msg"]} for fault in found])


def _unstorable(task: AnyTask, faults: list[dict[str, str]]) -> PayloadError:
    shown = "; ".join(f"{fault['path'] or 'payload'}: {fault['message']}" for fault in faults[:5])
    more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
    return PayloadError(f"payload of task {task.id!r}: {shown}{more}", faults)


def _too_large(code: str, what: str, size: int, limit: int) -> ContractError:
    return ContractError(
        code,
        f"{what}: {size} bytes of JSON, more than {limit}; store it elsewhere and pass a reference",
        meta={"bytes": size, "limit": limit},
    )
