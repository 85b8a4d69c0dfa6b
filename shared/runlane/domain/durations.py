"""Durations as people write them: "500ms", "30s", "2m", "1.5h", "7d", or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from runlane.domain.errors import ContractError
from runlane.domain.shown import shown

Duration = str | timedelta

ZERO = timedelta(0)
MICROSECOND = timedelta(microseconds=1)
LONGEST = timedelta(days=36_525)
"""A hundred years: added to today's date it stays far within what Postgres and Python can store."""

_MICROSECONDS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_WRITTEN = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(ms|s|m|h|d)")


def parse_duration(value: Duration, what: str = "duration") -> timedelta:
    """Read a duration, rounded to microseconds; `ContractError` `duration_invalid` if it is malformed, negative or over 100 years."""
    if isinstance(value, timedelta):
        return _within_bounds(value, value, what)
    written = _match(value)
    if written is None:
        raise _refused(value, what, 'is not a duration; write a number and a unit, e.g. "500ms", "30s", "2m", "1.5h" or "7d"')
    number, unit = written.groups()
    microseconds = round(Decimal(number) * _MICROSECONDS[unit])
    return _within_bounds(value, timedelta(microseconds=min(microseconds, LONGEST // MICROSECOND + 1)), what)


def gather_duration(value: Duration, what: str, faults: list[str], *, positive: bool = False) -> timedelta:
    """Read a duration of a configuration: what is wrong is added to `faults`, and zero is returned."""
    try:
        duration = parse_duration(value, what)
    except ContractError as error:
        faults.append(error.message)
        return ZERO
    if positive and duration == ZERO:
        faults.append(f"{what}: is zero; give more")
    return duration


def format_duration(duration: timedelta) -> str:
    """The shortest exact text in one unit, so that `parse_duration` gives the same duration back."""
    microseconds = duration // MICROSECOND
    for unit in ("d", "h", "m", "s", "ms"):
        if microseconds % _MICROSECONDS[unit] == 0 and (microseconds or unit == "s"):
            return f"{microseconds // _MICROSECONDS[unit]}{unit}"
    unit = "s" if microseconds >= _MICROSECONDS["s"] else "ms"
    return f"{Decimal(microseconds) / _MICROSECONDS[unit]:f}{unit}"


def _match(value: object) -> re.Match[str] | None:
    return _WRITTEN.fullmatch(value) if isinstance(value, str) else None


def _within_bounds(written: object, duration: timedelta, what: str) -> timedelta:
    if duration < ZERO:
        raise _refused(written, what, "is negative; give zero or more")
    if duration > LONGEST:
        raise _refused(written, what, "is longer than 100 years; give less")
    return duration


def _refused(value: object, what: str, fault: str) -> ContractError:
    return ContractError("duration_invalid", f"{what}: {shown(value)} {fault}", meta={"field": what})
