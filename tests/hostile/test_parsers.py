"""Whatever text comes from outside: an answer or a clear error, soon. `make fuzz` looks for texts; those worth keeping are in `corpus`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hostile.parsers import PARSERS, feed

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
ODD = [
    "",
    "\0",
    "\ud800",
    "\U0001f600" * 255,
    "k" * 255,
    "k" * 256,
    "9" * 5000,
    "9" * 5000 + "s",
    "9" * 5000 + " * * * *",
    "*/" + "9" * 5000 + " * * * *",
    "* * * * 1#" + "9" * 5000,
    "[" * 50_000,
    '{"a":' * 50_000,
    "[" * 800 + "]" * 800,
    "NaN",
    "1e999",
    "-Infinity",
    '{"number": NaN}',
    '{"number": 1e999}',
    '{"number": ' + "9" * 5000 + "}",
    '{"note": "\\ud800", "number": 1}',
    '{"note": "\\u0000", "number": 1}',
    "\x1b[2J[red]\u202e\n",
    "%s%n{0}{x!r}$1",
    "'; DROP TABLE runlane.run; --",
    "0001-01-01T00:00+14:00",
    "9999-12-31T23:59-14:00",
    "../../etc/passwd",
    "W10",
    "postgresql://u:%zz@h/x",
    "x" * 300_000,
]
FRAGMENTS = st.sampled_from(
    [*"*/,-#L[]{}:.\"'%$\\ 0123456789smhdTZ+eE", "NaN", "\0", "\ud800", "\x1b", "\U0001f600", "version", "message", "runId"]
)
TEXTS = st.text() | st.lists(FRAGMENTS, max_size=30).map("".join)
SOON = timedelta(seconds=2)


@pytest.mark.parametrize("parser", PARSERS)
def test_odd_text_is_answered_or_refused(parser: str) -> None:
    for text in [*ODD, *(file.read_bytes().decode("utf-8", "surrogateescape") for file in CORPUS)]:
        feed(parser, text)


@pytest.mark.parametrize("parser", PARSERS)
@given(text=TEXTS)
@settings(max_examples=30, deadline=SOON)
def test_any_text_is_answered_or_refused(parser: str, text: str) -> None:
    feed(parser, text)


@pytest.mark.thorough
@pytest.mark.parametrize("parser", PARSERS)
@given(text=TEXTS)
@settings(max_examples=300, deadline=SOON)
def test_much_text_is_answered_or_refused(parser: str, text: str) -> None:
    feed(parser, text)
