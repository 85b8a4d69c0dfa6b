"""How a resident worker's deliveries learn that the process has to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from threading import Event, Lock

from runlane.ports.clock import Clock


class Stop:
    """Asked once or more; the earliest end counts. What is under way then has the grace to end, and nothing new starts."""

    def __init__(self, clock: Clock) -> None:
        self.grace = inf
        """Seconds that were given; infinite until somebody asks."""
        self.ends_at = inf
        """By the process's clock."""
        self._clock = clock
        self._asked = Event()
        self._waiting: list[Callable[[], None]] = []
        self._lock = Lock()

    @property
    def is_asked(self) -> bool:
        return self.ends_at < inf

    def ask(self, grace: float) -> None:
        """Let everything end within `grace` seconds."""
        with self._lock:
            ends_at = self._clock.monotonic() + grace
            if ends_at < self.ends_at:
                self.grace, self.ends_at = grace, ends_at
            waiting = list(self._waiting)
        self._asked.set()
        for wake in waiting:
            wake()

    def wait(self, seconds: float) -> bool:
        """Up to so many seconds; True as soon as it is asked for."""
        return self._asked.wait(seconds)

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """`wake` is called, from another thread, when the stop is asked for."""
        with self._lock:
            self._waiting.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.remove(wake)
