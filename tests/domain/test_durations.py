from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runlane.domain.durations import LONGEST, ZERO, format_duration, gather_duration, parse_duration
from runlane.domain.errors import ContractError
from tests.domain.strategies import durations


@given(durations)
@example(ZERO)
@example(LONGEST)
@example(timedelta(microseconds=1))
@example(timedelta(days=1, microseconds=1))
def test_a_formatted_duration_reads_back_as_itself(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(durations)
def test_a_formatted_duration_is_plain_decimal_text(duration: timedelta) -> None:
    assert set(format_duration(duration)) <= set("0123456789.msdh")


@given(durations)
def test_a_timedelta_is_taken_as_it_is(duration: timedelta) -> None:
    assert parse_duration(duration) == duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("2m", timedelta(minutes=2)),
        ("1h", timedelta(hours=1)),
        ("7d", timedelta(days=7)),
        ("1.5h", timedelta(minutes=90)),
        ("0.001ms", timedelta(microseconds=1)),
        ("0s", ZERO),
        ("090s", timedelta(seconds=90)),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (ZERO, "0s"),
        (timedelta(minutes=90), "90m"),
        (timedelta(hours=24), "1d"),
        (timedelta(milliseconds=1500), "1500ms"),
        (timedelta(microseconds=1), "0.001ms"),
        (timedelta(seconds=1, microseconds=1), "1.000001s"),
    ],
)
def test_the_largest_unit_that_divides_a_duration_is_chosen(duration: timedelta, expected: str) -> None:
    assert format_duration(duration) == expected


@pytest.mark.parametrize(
    "text",
    [*" 5sw\0", "", "5 s", " 5s", "5s\n", "-5s", "+5s", "1e3s", ".5s", "5.s", "5S", "1h30m", "٥s", "nans", "infs", "9" * 19 + "s"],
)
def test_malformed_text_is_refused_and_the_error_shows_how_to_write_one(text: str) -> None:
    with pytest.raises(ContractError, match="write a number and a unit") as caught:
        parse_duration(text, "lease_duration")
    assert caught.value.code == "duration_invalid"
    assert caught.value.meta == {"field": "lease_duration"}


@pytest.mark.parametrize("value", [None, 5, 5.0, True, b"5s", ["5s"]])
def test_what_is_neither_text_nor_timedelta_is_refused(value: Any) -> None:
    with pytest.raises(ContractError, match="is not a duration"):
        parse_duration(value)


@given(st.timedeltas(max_value=timedelta(microseconds=-1)))
def test_a_negative_duration_is_refused(duration: timedelta) -> None:
    with pytest.raises(ContractError, match="negative"):
        parse_duration(duration)


@pytest.mark.parametrize("value", ["36525.1d", "9" * 18 + "d", timedelta.max])
def test_more_than_a_century_is_refused(value: str | timedelta) -> None:
    with pytest.raises(ContractError, match="longer than 100 years"):
        parse_duration(value)


@given(st.text())
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    with suppress(ContractError):
        assert ZERO <= parse_duration(text) <= LONGEST


def test_a_configuration_gathers_the_fault_and_goes_on() -> None:
    faults: list[str] = []
    assert gather_duration("soon", "period", faults) == ZERO
    assert gather_duration("0s", "period", faults, positive=True) == ZERO
    assert gather_duration("0s", "period", faults) == ZERO
    assert len(faults) == 2
