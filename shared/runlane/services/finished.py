"""Attempts that have ended, handed from the threads that ran them to the one that settles them in groups."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from threading import Lock

from runlane.services.attempt import Attempt


class FinishedAttempts:
    """Wakes its one waiting thread at the last of the open attempts, or at the first one if it listens: seldom, as a switch costs
    more than a quick attempt."""

    def __init__(self) -> None:
        self.open_count = 0
        """How many attempts are under way or wait here; set by the settling thread before they can end."""
        self._attempts: list[Attempt] = []
        self._lock = Lock()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_listening = False
        self._is_called = False

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def are_all(self) -> bool:
        return len(self._attempts) >= self.open_count

    def add(self, attempt: Attempt) -> bool:
        """Hand an attempt over; False if nobody waits for it any more."""
        with self._lock:
            if attempt.is_stray:
                return False
            self._attempts.append(attempt)
            rings = self._is_listening or len(self._attempts) >= self.open_count
            self._is_listening = False
        if rings:
            self._bell.put(None)
        return True

    def take(self) -> list[Attempt]:
        with self._lock:
            taken, self._attempts = self._attempts, []
            self._is_called = False
        return taken

    def call(self) -> None:
        """Wake the waiting thread, or keep it from waiting, although no attempt was handed over."""
        with self._lock:
            self._is_called = True
        self._bell.put(None)

    def abandon(self, attempt: Attempt) -> bool:
        """Stop waiting for an attempt; False if it has ended after all."""
        with self._lock:
            if attempt.settlement is None:
                attempt.is_stray = True
        return attempt.is_stray

    def wait_for_all(self, seconds: float) -> None:
        if not self.are_all:
            self._wait(seconds)

    def wait_for_one(self, seconds: float) -> None:
        with self._lock:
            self._is_listening = not self._attempts and not self._is_called
        if self._is_listening:
            self._wait(seconds)
            self._is_listening = False

    def quiet(self) -> None:
        """Forget rings for attempts that were taken meanwhile."""
        while not self._bell.empty():
            self._bell.get()

    def _wait(self, seconds: float) -> None:
        try:
            self._bell.get(timeout=seconds)
        except Empty:
            return
