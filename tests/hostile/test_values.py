"""What Python code may give, and no text could say."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from runlane import Queue, Retry, Schedule, Throttle
from runlane.domain.durations import parse_duration
from runlane.domain.errors import ConfigurationError, RunlaneError
from runlane.domain.options import validate_priority
from runlane.services.operate.arguments import checked_reason, checked_source, checked_statuses
from runlane.settings import read_settings
from tests.acceptance.command import inside

HUGE = 10**5000


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__


def nested() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


VALUES = {
    "huge": HUGE,
    "nested": nested(),
    "unspeakable": Unspeakable(),
    "nan": math.nan,
    "long": "x" * 1_000_000,
    "controls": "\x1b[2J\u202e\ud800",
}
TAKERS: dict[str, Callable[[Any], object]] = {
    "concurrency_limit": lambda value: Queue("q", concurrency_limit=value),
    "throttle burst": lambda value: Throttle(1, "1s", value),
    "throttle": lambda value: Queue("q", throttle=value),
    "max_attempts": lambda value: Retry(value),
    "backoff": lambda value: Retry(1, backoff=value),
    "priority": validate_priority,
    "duration": parse_duration,
    "every": lambda value: Schedule("s", every=value),
    "cron": lambda value: Schedule("s", cron=[value]),  # type: ignore[arg-type]
    "run_at": lambda value: Schedule("s", run_at=value),
    "catch_up": lambda value: Schedule("s", every="1h", catch_up=value),
    "status": checked_statuses,
    "source": checked_source,
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", TAKERS)
def test_a_value_that_cannot_be_meant_is_refused_by_name_in_few_words(field: str, value: str) -> None:
    with pytest.raises(RunlaneError, match=field) as refused:
        TAKERS[field](VALUES[value])
    assert len(str(refused.value)) < 800
    assert str(refused.value).replace("\n", "").isprintable()


@pytest.mark.parametrize("value", VALUES)
def test_any_reason_is_kept_as_short_text(value: str) -> None:
    assert len((checked_reason(VALUES[value]) or "").encode()) <= 1024


@pytest.mark.parametrize("year", [1, 9999])
def test_a_schedule_at_the_ends_of_the_calendar_is_refused(year: int) -> None:
    with pytest.raises(ConfigurationError, match=r"run_at: .* is out of range"):
        Schedule("s", run_at=datetime(year, 1, 1, tzinfo=UTC))


def test_an_interval_that_is_too_long_has_one_fault() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Schedule("s", every="999999d")
    assert len(refused.value.faults) == 1


def test_a_variable_that_is_not_utf8_is_named() -> None:
    with pytest.raises(ConfigurationError, match="RUNLANE_DATABASE_CA: is not UTF-8"):
        read_settings({"DATABASE_URL": "postgresql://h/d", "RUNLANE_DATABASE_CA": "/\udcff"})


def test_maintenance_without_a_pause_is_refused(tmp_path: Any) -> None:
    refused = inside("dev", "--tick-every", "0s", folder=tmp_path)
    assert (refused.code, refused.err.startswith("error: --tick-every: ")) == (2, True)
