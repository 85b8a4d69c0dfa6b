"""Cron expressions in a time zone. The library reads the expression; what a clock change does to it is decided here.

An expression names local times, and each makes one fire: a time that a clock change leaves out fires at the first instant after it, one
that comes twice fires the first time. An expression for every hour names no time of day: it goes on through the hour that comes twice,
as else it would stop for an hour. Reasons: docs/decisions/0006-schedules.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from runlane.domain.shown import shown

_FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
_HOURS = set(range(24))
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_SOME_TIME = datetime(2024, 1, 1, tzinfo=UTC)
"""A leap year's first: whatever an expression names comes within fifty years of it, or never."""


def cron_fault(expression: str) -> str | None:
    """What is wrong with an expression, and what mends it; None if it fires at some time."""
    count = len(expression.split())
    if count != len(_FIELDS):
        return f"cron: {shown(expression)} has {count} fields; give five: {', '.join(_FIELDS)}"
    try:
        if next(CronSim(expression, _SOME_TIME), None) is not None:
            return None
    except ValueError:  # Python reads no number of more than 4,300 digits.
        return f"cron: {shown(expression)} has a number that is too large; correct it"
    except CronSimError as error:
        # It refuses a day that none of the months has by the name of the field, too.
        field = str(error).removeprefix("Bad ")
        return f"cron: {shown(expression)} has a {field} that does not exist; correct it, or give another date"
    return f"cron: {shown(expression)} names a date that does not come within fifty years; give another"


class Cron:
    """A valid expression in a zone."""

    def __init__(self, expression: str, timezone: str) -> None:
        self._zone = ZoneInfo(timezone)
        self._read = CronSim(expression, _SOME_TIME)
        self._is_hourly = self._read.hours == _HOURS

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire later than `moment`, in UTC; None if there is none within fifty years."""
        local = moment.astimezone(self._zone)
        if not self._is_hourly:
            return self._first(local.replace(tzinfo=None), 0, moment)
        first = self._first(local.replace(tzinfo=None), local.fold, moment)
        # How far clocks go back before the next fire, or within a day: those local times come again.
        until = moment + _DAY if first is None else min(first, moment + _DAY)
        back = (local.utcoffset() or _SECOND) - (until.astimezone(self._zone).utcoffset() or _SECOND)
        if back <= timedelta(0):
            return first
        again = self._first(local.replace(tzinfo=None) - back - _SECOND, 1, moment)
        return min(filter(None, (first, again)), default=None)

    def _first(self, wall: datetime, fold: int, moment: datetime) -> datetime | None:
        """The first of the local times after `wall` that comes after `moment`; of those that come twice the one that `fold` means."""
        return next((instant for instant in (self._instant(time, fold) for time in self._walls(wall)) if instant > moment), None)

    def _walls(self, wall: datetime) -> Iterator[datetime]:
        # Without a zone the library knows no clock changes either. A copy: to read the expression takes longer than to go on.
        walls = copy(self._read)
        # Of whole seconds, as the library makes it when it is made anew: it keeps the fraction of what it is set to.
        walls.dt = wall.replace(microsecond=0)
        yield from walls

    def _instant(self, wall: datetime, fold: int) -> datetime:
        """When a local time comes; one that is left out: the first instant after the clock change."""
        instant = wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)
        if instant.astimezone(self._zone).replace(tzinfo=None) == wall:
            return instant
        # Read with the offset after the change it lies before it, and with the one before it, after it.
        before = wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        after = wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        offset = after.astimezone(self._zone).utcoffset()
        while after - before > _SECOND:
            middle = before + (after - before) // _SECOND // 2 * _SECOND
            if middle.astimezone(self._zone).utcoffset() == offset:
                after = middle
            else:
                before = middle
        return after
