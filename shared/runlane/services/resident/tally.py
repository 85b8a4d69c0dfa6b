"""Telemetry that also counts what became of runs."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import Any

from runlane.domain.run import Status
from runlane.ports.telemetry import Telemetry


class Tally:
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._statuses: Counter[Status] = Counter()
        self._lock = Lock()

    @property
    def attempts(self) -> dict[str, int]:
        """How many attempts ended, by the status that they left their runs in."""
        with self._lock:
            return {status.value: count for status, count in sorted(self._statuses.items())}

    def emit(self, event: str, /, **facts: Any) -> None:
        if event == "settle.done":
            with self._lock:
                self._statuses.update(facts["statuses"])
        self._telemetry.emit(event, **facts)

    def flush(self) -> None:
        self._telemetry.flush()
