"""How much time a delivery has, and what still fits into it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from runlane.ports.clock import Clock

Remaining = Callable[[], float]
"""Seconds until the process is stopped from outside."""

LARGEST_MARGIN_SHARE = 0.25
GRACE_SHARE = 0.4
"""Of the margin: for attempts to notice their deadline, and again for the last transaction."""
LONGEST_GRACE = 2.0


class TimeBudget:
    """One delivery's time, in seconds of the process's clock.

    Handlers must have ended at `end`, a margin before the process is stopped; the margin is for settling. It is never
    more than a quarter of the time given, so that short time-outs leave room for work. Without `remaining` nothing ends.
    """

    __slots__ = ("end", "margin", "started_at")

    def __init__(self, clock: Clock, remaining: Remaining | None, margin: float) -> None:
        given = inf if remaining is None else max(0.0, remaining())
        self.started_at = clock.monotonic()
        self.margin = min(margin, given * LARGEST_MARGIN_SHARE)
        self.end = self.started_at + given - self.margin

    @property
    def grace(self) -> float:
        """Seconds in which an attempt must notice that its deadline has passed."""
        return min(self.margin * GRACE_SHARE, LONGEST_GRACE)

    def fits(self, duration: float | None, now: float) -> bool:
        """Whether an attempt of this length, or else of the margin's, can still be started."""
        return now + (self.margin if duration is None else duration) <= self.end

    def could_fit(self, duration: float | None) -> bool:
        """Whether it would have fitted at the start."""
        return self.fits(duration, self.started_at)

    def deadline(self, duration: float | None, now: float) -> float:
        return self.end if duration is None else min(self.end, now + duration)
