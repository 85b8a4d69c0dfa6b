"""Waits for what another thread or process brings about; fails instead of hanging."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def until(holds: Callable[[], bool], timeout: float = 15.0) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
