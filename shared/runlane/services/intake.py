"""Where a delivery that does not end by itself finds its next runs."""

from __future__ import annotations

from math import inf
from typing import Protocol

from runlane.ports.stores import ClaimBatch, Wakeup


class Intake(Protocol):
    """Asked on the delivery's threads, never from two at once."""

    @property
    def is_open(self) -> bool:
        """Whether the delivery goes on when it has nothing under way."""
        ...

    @property
    def next_at(self) -> float:
        """When to look for runs again, by the process's clock, if there is room for any."""
        ...

    def take(self, room: int) -> ClaimBatch:
        """Up to `room` runs under this process's lease. Raises what ends the delivery."""
        ...

    def rest(self, now: float) -> None:
        """Nothing was left to claim a moment ago."""
        ...

    def tend(self, now: float) -> tuple[Wakeup, ...]:
        """There is no room. What is due must get into the order all the same; answers what others are to be told of. Called often."""
        ...


class NoIntake:
    """A delivery of wakeups: it ends when they and what follows from them have ended."""

    is_open = False
    next_at = inf

    def take(self, room: int) -> ClaimBatch:
        return ClaimBatch()

    def rest(self, now: float) -> None:
        return None

    def tend(self, now: float) -> tuple[Wakeup, ...]:
        return ()
