"""How long ended runs are kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runlane.domain.errors import ConfigurationError, ContractError
from runlane.domain.retention import DEFAULT_RETENTION, read_retention, retention_faults
from runlane.settings import read_settings

MONTH = timedelta(days=30)


def test_a_duration_a_default_and_for_ever_are_read() -> None:
    assert read_retention("30d") == MONTH
    assert read_retention(DEFAULT_RETENTION) == 3 * MONTH
    assert read_retention("forever") is None


def test_less_than_a_day_is_refused() -> None:
    with pytest.raises(ContractError, match="retention: 1h is shorter than 1d"):
        read_retention("1h")


def test_a_time_to_live_that_is_longer_is_told_with_both_and_the_task() -> None:
    ttls = [("a", MONTH), ("b", MONTH * 2), ("c", None)]
    (fault,) = retention_faults(MONTH, ttls)
    assert all(part in fault for part in ("30d", "60d", "'b'"))
    assert list(retention_faults(None, ttls)) == []


def test_a_variable_that_makes_no_sense_is_named() -> None:
    with pytest.raises(ConfigurationError, match="RUNLANE_RETENTION: retention: 1m is shorter than 1d"):
        read_settings({"DATABASE_URL": "postgresql://", "RUNLANE_RETENTION": "1m"})
