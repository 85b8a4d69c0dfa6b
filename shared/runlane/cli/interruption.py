"""Ctrl-C in the middle of much work: the step under way is finished, so that what is done is known."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_between_steps() -> Iterator[Callable[[], bool]]:
    """Whether to stop, to be asked after each step. Whoever asks a second time does not wait for the step."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        sys.stderr.write("\nstopping after the batch under way; once more to stop at once\n")

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
