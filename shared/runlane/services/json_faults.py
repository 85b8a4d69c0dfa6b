"""What JSON text in Postgres cannot hold, found with its path."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from runlane.domain.excerpt import unstorable

LONGEST_NUMBER = 4300
"""Digits of a whole number that Python reads: its own limit by default."""

NOT_FINITE = "is not a finite number, which JSON cannot express; give a finite number or null"

TOO_LONG = f"is a whole number of more than {LONGEST_NUMBER} digits, which Python does not read back; give it as text"

_TOO_LONG = 10**LONGEST_NUMBER


def json_faults(value: Any, path: str = "") -> Iterator[dict[str, str]]:
    """Every `{"path", "message"}` in a tree of dicts, lists and scalars; the path is dotted, "" for the whole."""
    if isinstance(value, str):
        if fault := unstorable(value):
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
    if fault := unstorable(text):
        yield {"path": name, "message": f"key {fault}"}
    yield from json_faults(item, name)


def _joined(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part
