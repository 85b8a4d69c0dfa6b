"""Waits for what another thread or process brings about; fails instead of hanging."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

PATIENCE = 60.0
"""Seconds after which something does not come any more; generous, since a machine may stand still and a test that waits costs nothing."""


def until(holds: Callable[[], bool], timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
