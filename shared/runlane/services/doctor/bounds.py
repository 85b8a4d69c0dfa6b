"""From where on something is worth a warning, and from where on it is a fault."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from runlane.domain.finding import Finding, Level

T = TypeVar("T", int, float, timedelta)

CLOCK_WARNS, CLOCK_FAILS = timedelta(seconds=1), timedelta(seconds=30)
CONNECTIONS_WARN = 0.8
HORIZON_WARNS, HORIZON_FAILS = timedelta(minutes=1), timedelta(minutes=10)
XIDS_WARN, XIDS_FAIL = 50_000, 1_000_000
"""Transactions that a slot, a standby or a session of another role holds back, where its time is not known."""
DEAD_ROWS_WARN, DEAD_ROWS_FAIL = 50_000, 1_000_000
IDS_WARN, IDS_FAIL = 500_000_000, 1_000_000_000
NEAR = 1
"""Weeks ahead for which a partition must be there."""
MISSED_AFTER = timedelta(minutes=3)
LATE_AFTER = timedelta(minutes=3)
"""Minute schedules may fire two minutes apart, and a pass may take one."""


def graded(check: str, value: T, warns: T, fails: T, what: str, why: str, remedy: str) -> Finding:
    """A finding by how large a value is."""
    if value < warns:
        return Finding(check, Level.OK, what)
    return Finding(check, Level.FAILURE if value >= fails else Level.WARNING, what, why, remedy)
