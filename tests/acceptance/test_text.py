from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from runlane.cli.output import cell, counted, plain, span, table
from runlane.cli.text import clean


@given(st.text(alphabet=st.characters()))
def test_nothing_a_terminal_obeys_is_shown(text: str) -> None:
    shown = clean(text)
    assert not set(shown) & set("\x00\x07\x08\x1b\x7f\x9b\r\n\t\u202e\u2066")
    shown.encode()


def test_what_is_written_out_can_be_read() -> None:
    assert clean("a\x1b[31mb\n\x00ü–🙂") == "a\\x1b[31mb\\n\\x00ü–🙂"


def test_records_become_documents() -> None:
    @dataclass
    class Point:
        at: datetime
        took: timedelta
        parts: tuple[int, ...]

    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert plain(Point(at, timedelta(milliseconds=1500), (1, 2))) == {"at": "2026-01-02T03:04:05Z", "took": 1.5, "parts": [1, 2]}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "12 ms"), (1.25, "1.2 s"), (90, "90 s"), (600, "10 min"), (7200, "2 h"), (259_200, "3 d")]
)
def test_spans_are_short(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_cells_hold_one_line() -> None:
    assert [cell(None), cell({"a": "ü\n"}), cell("x")] == ["–", '{"a": "ü\\n"}', "x"]


def test_times_name_their_zone() -> None:
    assert cell(datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-02 01:04:05Z"


def test_counts_agree_with_their_noun() -> None:
    assert [counted(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


def test_an_id_can_be_copied_from_a_narrow_terminal() -> None:
    shown = StringIO()
    narrow = Console(width=60, file=shown)
    narrow.print(table(["run", "task", "queue"], [["01900000-0000-7000-8000-000000000000", "a" * 40, "b" * 40]]))
    assert "01900000-0000-7000-8000-000000000000" in shown.getvalue()
