"""Moves that had to give way to another transaction are tried again: nothing of them was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from runlane.domain.errors import ConflictError
from runlane.ports.clock import Clock

T = TypeVar("T")
PATIENCE = (0.05, 0.2, 0.5)
"""Seconds before each further try."""


def patiently(clock: Clock, move: Callable[[], T]) -> T:
    for pause in PATIENCE:
        try:
            return move()
        except ConflictError as error:
            if not error.retryable:
                raise
            clock.sleep(pause)
    return move()
