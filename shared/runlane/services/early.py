"""Wakeups that came a moment before their run may start: held here, so that they take no place of a run that can start."""

from __future__ import annotations

from datetime import timedelta
from heapq import heappop, heappush
from math import inf
from threading import Lock

from runlane.domain.ids import RunId

LONGEST = timedelta(seconds=1)
"""How early a wakeup may come to be held; the transport's delays are whole seconds, rounded down."""

LONGEST_THROTTLED = timedelta(seconds=2)
"""The same for a run that its queue's throttle has reserved: dispatch does it so far ahead."""

_SLACK = 0.001
"""Never before the due time: the database judges it with its own clock."""


class HeldCount:
    """How many wakeups all deliveries of a process hold: beside its room, of which they take nothing."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = Lock()

    def add(self, number: int) -> None:
        with self._lock:
            self.value += number


class EarlyWakeups:
    def __init__(self, count: HeldCount) -> None:
        self._count = count
        self._held: list[tuple[float, RunId]] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def holds(self, run_id: RunId) -> bool:
        return any(held == run_id for _, held in self._held)

    @property
    def next_at(self) -> float:
        """When the first one is due, on the process's clock; infinite when none is held."""
        return self._held[0][0] if self._held else inf

    def hold(self, run_id: RunId, due_in: timedelta, now: float) -> None:
        heappush(self._held, (now + due_in.total_seconds() + _SLACK, run_id))
        self._count.add(1)

    def pop_due(self, now: float) -> list[RunId]:
        due: list[RunId] = []
        while self._held and self._held[0][0] <= now:
            due.append(heappop(self._held)[1])
        self._count.add(-len(due))
        return due

    def let_go(self) -> None:
        """The delivery is broken off: its messages come again."""
        self._count.add(-len(self._held))
        self._held.clear()
