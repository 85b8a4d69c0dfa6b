"""What JSON text in Postgres cannot hold, found with its path."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

LONGEST_NUMBER = 4300
"""Digits of a whole number that Python reads: its own limit by default."""

NUL = "contains NUL, which Postgres cannot store; remove it"
SURROGATE = "contains a lone surrogate, which UTF-8 cannot encode; give valid Unicode"
NOT_FINITE = "is not a finite number, which JSON cannot express; give a finite number or null"

TOO_LONG = f"is a whole number of more than {LONGEST_NUMBER} digits, which Python does not read back; give it as text"

_TOO_LONG = 10**LONGEST_NUMBER


def json_faults(value: Any, path: str = "") -> Iterator[dict[str, str]]:
    """Every `{"path", "message"}` in a tree of dicts, lists and scalars; the path is dotted, "" for the whole."""
    if isinstance(value, str):
        if fault := _text_fault(value):
            yield {"path": path, "message": fault}
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield {"path": path, "message": NOT_FINITE}
    elif isinstance(value, int):
        if abs(value) >= _TOO_LONG:
            yield {"path": path, "message": TOO_LONG}
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _entry_faults(key, item, path)
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield from json_faults(item, _joined(path, str(index)))


def _entry_faults(key: Any, item: Any, path: str) -> Iterator[dict[str, str]]:
    text = str(key)
    name = _joined(path, ascii(text)[1:-1])
    if fault := _text_fault(text):
        yield {"path": name, "message": f"key {fault}"}
    yield from json_faults(item, name)


def _text_fault(text: str) -> str | None:
    if "\0" in text:
        return NUL
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return SURROGATE
    return None


def _joined(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part
