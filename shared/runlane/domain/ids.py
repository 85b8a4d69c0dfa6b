"""Identifiers and the two kinds of text that people choose: names and keys."""

from __future__ import annotations

import re
from typing import NewType

from runlane.domain.errors import ContractError
from runlane.domain.excerpt import unstorable
from runlane.domain.shown import shown

RunId = NewType("RunId", str)
"""A UUIDv7 in canonical lower-case form, made by the database."""

MAX_LENGTH = 255

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def parse_run_id(text: str) -> RunId:
    """The canonical form of a run id; `ContractError` `run_id_invalid` for anything but 8-4-4-4-12 hex digits."""
    if not _is_uuid(text):
        raise ContractError(
            "run_id_invalid",
            f"run id: {shown(text)} is not a UUID; give the id as trigger returned it, e.g. 01900000-0000-7000-8000-000000000000",
            meta={"field": "run_id"},
        )
    return RunId(text.lower())


def validate_name(value: str, what: str) -> str:
    """A name (environment, queue, task, …), unchanged: 1 to 255 characters without ':' or NUL; `ContractError` `name_invalid`."""
    fault = _text_fault(value) or _colon_fault(value)
    if fault:
        raise ContractError("name_invalid", f"{what}: {shown(value)} {fault}", meta={"field": what})
    return value


def validate_key(value: str, what: str) -> str:
    """A key (tenant, concurrency, idempotency, …), unchanged: any 1 to 255 characters without NUL; `ContractError` `key_invalid`."""
    fault = _text_fault(value)
    if fault:
        raise ContractError("key_invalid", f"{what}: {shown(value)} {fault}", meta={"field": what})
    return value


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _text_fault(value: object) -> str | None:
    if not isinstance(value, str):
        return "is not text; give a str"
    if not value:
        return f"is empty; give 1 to {MAX_LENGTH} characters"
    if len(value) > MAX_LENGTH:
        return f"has {len(value)} characters; give at most {MAX_LENGTH}, for example a hash of the longer text"
    return unstorable(value)


def _colon_fault(value: str) -> str | None:
    return "contains ':', which separates names; use '.', '-' or '_'" if ":" in value else None
