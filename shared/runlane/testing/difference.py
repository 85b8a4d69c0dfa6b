"""Where two JSON values differ, by path."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LONGEST = 120


def differences(path: str, found: Any, expected: Any) -> Iterator[str]:
    """A line for each leaf that differs: `payload.customer: "acme", expected "beta"`."""
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            yield from _entry(f"{path}.{key}", key, found, expected)
    elif _is_list(found) and _is_list(expected) and len(found) == len(expected):
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(f"{path}[{index}]", one, other)
    elif not _is_same(found, expected):
        yield f"{path}: {shown(found)}, expected {shown(expected)}"


def shown(value: Any) -> str:
    """The value as JSON, its middle left out if it is long."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 30]}…{text[-25:]}"


def _entry(path: str, key: Any, found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> Iterator[str]:
    if key not in found:
        yield f"{path}: missing, expected {shown(expected[key])}"
    elif key not in expected:
        yield f"{path}: {shown(found[key])}, not expected"
    else:
        yield from differences(path, found[key], expected[key])


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_same(found: Any, expected: Any) -> bool:
    # In JSON true is not 1, whatever Python says.
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)
