"""How much time a delivery has, and what still fits into it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf

from runlane.ports.clock import Clock
from runlane.services.stop import Stop

Remaining = Callable[[], float]
"""Seconds until the process is stopped from outside."""

LARGEST_MARGIN_SHARE = 0.25
GRACE_SHARE = 0.4
"""Of the margin: for attempts to notice their deadline, and again for the last transaction."""
LONGEST_GRACE = 2.0


class TimeBudget:
    """One delivery's time, in seconds of the process's clock.

    Handlers must have ended at `end`, a margin before the process is stopped; the margin is for settling. It is never
    more than a quarter of the time given, so that short time-outs leave room for work. Without `remaining` nothing ends
    but by `stop`, after which nothing new fits.
    """

    __slots__ = ("_end", "_margin", "_stop", "started_at")

    def __init__(self, clock: Clock, remaining: Remaining | None, margin: float, stop: Stop | None = None) -> None:
        given = inf if remaining is None else max(0.0, remaining())
        self.started_at = clock.monotonic()
        self._margin = min(margin, given * LARGEST_MARGIN_SHARE)
        self._end = self.started_at + given - self._margin
        self._stop = stop or Stop(clock)

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_asked

    @property
    def margin(self) -> float:
        return min(self._margin, self._stop.grace * LARGEST_MARGIN_SHARE)

    @property
    def end(self) -> float:
        return min(self._end, self._stop.ends_at - self.margin)

    @property
    def grace(self) -> float:
        """Seconds in which an attempt must notice that its deadline has passed."""
        return min(self.margin * GRACE_SHARE, LONGEST_GRACE)

    def fits(self, duration: float | None, now: float) -> bool:
        """Whether an attempt of this length, or else of the margin's, can still be started."""
        return not self.is_stopping and self._fits(duration, now)

    def could_fit(self, duration: float | None) -> bool:
        """Whether it would have fitted at the start."""
        return self._fits(duration, self.started_at)

    def deadline(self, duration: float | None, now: float) -> float:
        """Of an attempt that starts now; a stop may bring it forward."""
        return self._end if duration is None else min(self._end, now + duration)

    def waking(self, wake: Callable[[], None]) -> AbstractContextManager[None]:
        """`wake` is called when `end` moves."""
        return self._stop.waking(wake)

    def _fits(self, duration: float | None, now: float) -> bool:
        return now + (self._margin if duration is None else duration) <= self._end
