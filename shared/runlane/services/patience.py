"""How long outcomes wait for a storage that is out of reach."""

from __future__ import annotations

from typing import Protocol

from runlane.domain.errors import UnavailableError
from runlane.ports.clock import Clock
from runlane.services.stop import Stop

PAUSES = (0.1, 0.4, 1.0)
"""Seconds before each further try: an outcome is worth waiting for."""


class Patience(Protocol):
    def __call__(self, tried: int, error: Exception) -> float | None:
        """Seconds to wait before the next try, after so many have failed; None: give up."""
        ...


def brief(tried: int, error: Exception) -> float | None:
    """A few tries: where the process is stopped from outside, soon."""
    return PAUSES[tried - 1] if tried <= len(PAUSES) else None


class UntilStopped:
    """A worker that lives on keeps what has ended for as long as an outage lasts: whoever finds its lease expired would run it again."""

    def __init__(self, stop: Stop, clock: Clock) -> None:
        self._stop = stop
        self._clock = clock

    def __call__(self, tried: int, error: Exception) -> float | None:
        pause = brief(tried, error)
        if pause is None and isinstance(error, UnavailableError) and self._clock.monotonic() < self._stop.ends_at:
            return PAUSES[-1]
        return pause
