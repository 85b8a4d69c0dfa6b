from __future__ import annotations

from typing import Any

import pytest

from runlane.testing.difference import LONGEST, differences, shown


@pytest.mark.parametrize(
    ("found", "expected", "lines"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["p.a: 1, expected 2"]),
        ({"a": {"b": [1, {"c": "x"}]}}, {"a": {"b": [1, {"c": "y"}]}}, ['p.a.b[1].c: "x", expected "y"']),
        ({"a": 1}, {"b": 1}, ["p.b: missing, expected 1", "p.a: 1, not expected"]),
        ([1], [1, 2], ["p: [1], expected [1, 2]"]),
        (True, 1, ["p: true, expected 1"]),
        ("ab", "ac", ['p: "ab", expected "ac"']),
        (None, {}, ["p: null, expected {}"]),
    ],
)
def test_what_differs_is_named_by_its_path(found: Any, expected: Any, lines: list[str]) -> None:
    assert list(differences("p", found, expected)) == lines


def test_a_long_value_is_shown_by_its_ends() -> None:
    text = shown("a" * 500 + "z")
    assert (text[:3], text[-2:]) == ('"aa', 'z"')
    assert len(text) <= LONGEST
