"""Seconds to wait, longer each time in a row."""

from __future__ import annotations


class Backoff:
    """Doubles from `first` to `last` seconds; `reset` after a success."""

    def __init__(self, first: float = 0.1, last: float = 5.0) -> None:
        self._first = first
        self._last = last
        self._wait = first

    def next(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, self._last)
        return wait

    def reset(self) -> None:
        self._wait = self._first
