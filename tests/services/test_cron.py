"""Cron expressions in time zones: what clock changes do to them, and what the library must not change under us."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlane.domain.schedule import Timing
from runlane.services.schedules.cron import Cron, cron_fault
from runlane.services.schedules.fires import EPOCH, between, fire_of, last, next_after

NEW_YORK, LORD_HOWE, APIA = "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def fires(expression: str, zone: str, day: str, days: int = 1) -> list[str]:
    """The fires of local days, as local times with their offsets."""
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    end = (start.replace(tzinfo=None) + timedelta(days=days)).replace(tzinfo=ZoneInfo(zone))
    found = between(Cron(expression, zone).next_after, start.astimezone(UTC) - MINUTE, end.astimezone(UTC) - MINUTE)
    return [fire.astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z") for fire in found]


def test_a_time_that_is_left_out_fires_at_the_first_instant_after_the_gap() -> None:
    assert fires("30 2 * * *", NEW_YORK, "2026-03-07", 3) == ["07 02:30-0500", "08 03:00-0400", "09 02:30-0400"]
    assert fires("0,15,30 2,3 * * *", NEW_YORK, "2026-03-08") == ["08 03:00-0400", "08 03:15-0400", "08 03:30-0400"]
    assert fires("0 */2 * * *", NEW_YORK, "2026-03-08")[:3] == ["08 00:00-0500", "08 03:00-0400", "08 04:00-0400"]


def test_a_time_that_comes_twice_fires_the_first_time() -> None:
    assert fires("30 1 * * *", NEW_YORK, "2026-10-31", 3) == ["31 01:30-0400", "01 01:30-0400", "02 01:30-0500"]
    assert fires("*/30 1 * * *", NEW_YORK, "2026-11-01") == ["01 01:00-0400", "01 01:30-0400"]
    assert fires("0 0-3 * * *", NEW_YORK, "2026-11-01") == ["01 00:00-0400", "01 01:00-0400", "01 02:00-0500", "01 03:00-0500"]


def test_a_fire_is_a_whole_second_however_broken_the_moment_before_it() -> None:
    following, fire = Cron("* * * * *", NEW_YORK).next_after, datetime(2026, 11, 30, 12, tzinfo=UTC)
    for microseconds in (1, 300_000, 999_999):
        assert following(fire - timedelta(microseconds=microseconds)) == fire
        assert following(fire + timedelta(microseconds=microseconds)) == fire + MINUTE


def test_each_minute_neither_stops_nor_bursts_at_a_clock_change() -> None:
    for day, minutes in (("2026-03-08", 23 * 60), ("2026-11-01", 25 * 60), ("2026-06-01", 24 * 60)):
        found = list(_instants("* * * * *", NEW_YORK, day))
        assert len(found) == minutes
        assert {later - earlier for earlier, later in pairwise(found)} == {MINUTE}


def test_a_quarter_of_an_hour_goes_on_through_the_hour_that_comes_twice() -> None:
    assert {later - earlier for earlier, later in pairwise(_instants("*/15 * * * *", NEW_YORK, "2026-11-01"))} == {15 * MINUTE}


def test_clocks_may_change_by_half_an_hour() -> None:
    assert fires("15 2 * * *", LORD_HOWE, "2026-10-04", 2) == ["04 02:30+1100", "05 02:15+1100"]
    assert fires("45 1 * * *", LORD_HOWE, "2026-04-05", 2) == ["05 01:45+1100", "06 01:45+1030"]
    assert {later - earlier for earlier, later in pairwise(_instants("*/10 * * * *", LORD_HOWE, "2026-04-05"))} == {10 * MINUTE}


def test_clocks_may_change_at_midnight() -> None:
    # Havana goes from 01:00 back to 00:00, Asuncion went from 23:59 to 01:00.
    assert fires("30 0 * * *", "America/Havana", "2026-11-01") == ["01 00:30-0400"]
    assert fires("0 0 * * *", "America/Asuncion", "2023-10-01", 2) == ["01 01:00-0300", "02 00:00-0300"]


def test_a_day_that_a_zone_left_out_fires_when_the_next_one_begins() -> None:
    assert fires("0 9 * * *", APIA, "2011-12-29", 3) == ["29 09:00-1000", "31 00:00+1400", "31 09:00+1400"]
    assert {later - earlier for earlier, later in pairwise(_instants("0 * * * *", APIA, "2011-12-29", 3))} == {HOUR}


def test_a_zone_that_changed_its_rules_is_read_by_the_rules_of_the_day() -> None:
    mexico = "America/Mexico_City"
    assert fires("0 9 1 7 *", mexico, "2022-06-30", 2) == ["01 09:00-0500"]
    assert fires("0 9 1 7 *", mexico, "2023-06-30", 2) == ["01 09:00-0600"]
    assert fires("30 2 * * *", mexico, "2023-04-02") == ["02 02:30-0600"]


def test_day_of_month_and_day_of_week_are_alternatives_when_both_are_given() -> None:
    assert [fire[:2] for fire in fires("0 0 13 * FRI", "UTC", "2026-02-01", 28)] == ["06", "13", "20", "27"]
    assert [fire[:2] for fire in fires("0 0 13 * 5", "UTC", "2026-01-01", 31)] == ["02", "09", "13", "16", "23", "30"]
    assert [fire[:2] for fire in fires("0 0 * * 7", "UTC", "2026-02-01", 8)] == ["01", "08"]


def test_last_days_and_nth_weekdays_are_read() -> None:
    assert [fire[:2] for fire in fires("0 0 L * *", "UTC", "2028-02-01", 60)] == ["29", "31"]
    assert [fire[:2] for fire in fires("0 0 * * 5L", "UTC", "2026-02-01", 28)] == ["27"]
    assert [fire[:2] for fire in fires("0 0 * * MON#2", "UTC", "2026-02-01", 28)] == ["09"]
    assert [fire[:2] for fire in fires("0 0 LW * *", "UTC", "2026-01-01", 31)] == ["30"]


def test_the_29th_of_february_comes_every_four_years() -> None:
    following = Cron("0 0 29 2 *", "UTC").next_after
    assert [fire.year for fire in between(following, datetime(2026, 1, 1, tzinfo=UTC), datetime(2045, 1, 1, tzinfo=UTC))] == [
        2028, 2032, 2036, 2040, 2044,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("0 0 30 2 *", "day-of-month"),
        ("0 0 31 4,6 *", "day-of-month"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day-of-month"),
        ("* * * 13 *", "month"),
        ("* * * * MOO", "day-of-week"),
        ("5-1 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("* * * *", "has 4 fields"),
        ("0 * * * * *", "has 6 fields"),
        ("@daily", "has 1 fields"),
        ("", "has 0 fields"),
        ("0 0 29 2 FRI#5,MON#5", None),
    ],
)
def test_an_expression_that_never_fires_is_refused_with_the_field_named(expression: str, named: str | None) -> None:
    fault = cron_fault(expression)
    assert fault is None if named is None else named in (fault or "")


# A day of a dense expression is many fires, on machines of any speed.
FEW = settings(deadline=None, max_examples=60)
_FIELD = {
    "minute": st.sampled_from(["*/20", "0", "30", "7", "15,45"]),
    "hour": st.sampled_from(["*", "0", "1", "2", "*/2", "1-3", "23", "0,12"]),
    "day": st.sampled_from(["*", "*/2", "1", "8,29", "L"]),
    "weekday": st.sampled_from(["*", "SUN", "1-5", "6L"]),
}
_EXPRESSIONS = st.builds(
    lambda minute, hour, day, weekday: f"{minute} {hour} {day} * {weekday}",
    *(_FIELD[name] for name in ("minute", "hour", "day", "weekday")),
)
_ZONES = st.sampled_from([NEW_YORK, LORD_HOWE, APIA, "Europe/Berlin", "America/Havana", "Africa/Casablanca", "Asia/Tehran", "UTC"])
_CHANGES = ["2011-12-29", "2021-03-14", "2021-09-22", "2022-04-03", "2023-10-01", "2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01"]
_MOMENTS = st.builds(
    lambda day, seconds, microseconds: (
        datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(seconds=seconds, microseconds=microseconds)
    ),
    st.sampled_from(_CHANGES),
    st.integers(-DAY // timedelta(seconds=1), 2 * DAY // timedelta(seconds=1)),
    st.sampled_from([0, 1, 400_000, 999_999]),
)


@FEW
@given(_EXPRESSIONS, _ZONES, _MOMENTS)
def test_fires_rise_and_each_named_local_time_makes_one(expression: str, zone: str, moment: datetime) -> None:
    cron, local = Cron(expression, zone), ZoneInfo(zone)
    found = list(between(cron.next_after, moment, moment + 2 * DAY))
    assert all(earlier < later for earlier, later in pairwise([moment, *found]))
    times = Counter(fire.astimezone(local).replace(tzinfo=None) for fire in found)
    if expression.split()[1] != "*":
        assert set(times.values()) <= {1}
    for fire in found:
        assert fire.second == fire.microsecond == 0


@FEW
@given(_EXPRESSIONS, _ZONES, _MOMENTS, st.integers(1, 24 * 60))
def test_where_one_begins_to_look_changes_no_fire(expression: str, zone: str, moment: datetime, minutes: int) -> None:
    following, later = Cron(expression, zone).next_after, moment + minutes * MINUTE
    end = moment + DAY
    assert list(between(following, later, end)) == [fire for fire in between(following, moment, end) if fire > later]


@FEW
@given(_EXPRESSIONS, _ZONES, _MOMENTS)
def test_every_local_time_that_an_expression_names_fires(expression: str, zone: str, moment: datetime) -> None:
    """Against a clock that is read each minute: whatever local time it shows and the expression names has fired by then."""
    local, start = ZoneInfo(zone), moment.replace(second=0, microsecond=0)
    named = set(between(Cron(expression, "UTC").next_after, start - 2 * DAY, start + 3 * DAY))
    clock = [start + number * MINUTE for number in range(1, 12 * 60)]
    shown = {minute: minute.astimezone(local).replace(tzinfo=UTC) for minute in clock}
    is_hourly = expression.split()[1] == "*"
    first_time = {minute for minute in clock if is_hourly or not minute.astimezone(local).fold}
    wanted = {minute for minute in first_time if shown[minute] in named}
    fired = set(between(Cron(expression, zone).next_after, start, clock[-1]))
    assert wanted <= fired
    for extra in fired - wanted:
        # Only where a clock change has just left out a time that is named.
        before = (extra - MINUTE).astimezone(local).replace(tzinfo=UTC)
        skipped = (before + number * MINUTE for number in range(1, (shown[extra] - before) // MINUTE))
        assert any(time in named for time in skipped)


def test_an_interval_is_counted_from_the_epoch_whoever_asks_and_when() -> None:
    following = next_after(Timing(every=7 * MINUTE))
    start = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)
    found = list(between(following, start, start + HOUR))
    assert all((fire - EPOCH) % (7 * MINUTE) == timedelta(0) for fire in found)
    assert following(found[0]) == found[1]
    assert following(found[0] - timedelta(microseconds=1)) == found[0]


def test_the_last_fires_are_found_from_the_end() -> None:
    until = datetime(2026, 11, 30, tzinfo=UTC)
    year = until - 365 * DAY
    assert last(next_after(Timing(cron="* * * * *")), year, until, 3) == [until - 2 * MINUTE, until - MINUTE, until]
    assert last(next_after(Timing(cron="0 0 1 1 *")), year, until, 3) == [datetime(2026, 1, 1, tzinfo=UTC)]


def test_jitter_is_the_same_for_the_same_fire_and_spreads_others() -> None:
    timing = Timing(cron="* * * * *", jitter=MINUTE)
    found = [fire_of("s", timing, EPOCH + number * MINUTE) for number in range(200)]
    delays = [fire.due_at - fire.fire_at for fire in found]
    assert found[0] == fire_of("s", timing, EPOCH)
    assert fire_of("other", timing, EPOCH) != found[0]
    assert all(timedelta(0) <= delay < MINUTE for delay in delays)
    assert 20 * timedelta(seconds=1) < sum(delays, timedelta(0)) / 200 < 40 * timedelta(seconds=1)


def _instants(expression: str, zone: str, day: str, days: int = 1) -> list[datetime]:
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    end = (start.replace(tzinfo=None) + timedelta(days=days)).replace(tzinfo=ZoneInfo(zone))
    return list(between(Cron(expression, zone).next_after, start.astimezone(UTC) - MINUTE, end.astimezone(UTC) - MINUTE))
