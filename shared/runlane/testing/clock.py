"""Time that only a test moves."""

from __future__ import annotations

from runlane.domain.durations import Duration, parse_duration


class ManualClock:
    """A `Clock` for code that takes one: it stands still until it is moved.

    For deadlines and intervals of pure code, and for `run_task(clock=…)`. What is due is judged by the database, whose clock
    nobody moves: see `make_due`.
    """

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the clock was made."""
        self.slept: list[float] = []
        """What was slept, in order; sleeping moves the clock and returns at once."""

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def advance(self, duration: Duration) -> None:
        """Move on by "90s", "2m" or a timedelta."""
        self.now += parse_duration(duration, "duration").total_seconds()
