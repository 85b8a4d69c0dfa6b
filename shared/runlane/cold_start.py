"""What a process that starts anew may leave out."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """For imports: what they make stays as long as the process, and to look through it for garbage takes a fifteenth of a cold start.

    Nor do later collections look through it, so that each of those is cheaper, too.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.freeze()
            gc.enable()
