"""Tells once when the code's queue policies are not the ones in force."""

from __future__ import annotations

from runlane.domain.errors import RunlaneError
from runlane.domain.queue import Queue
from runlane.domain.registry import QueueRegistry, drift
from runlane.ports.stores import QueueStore
from runlane.ports.telemetry import Telemetry


class DriftWatch:
    """Dispatch obeys the stored policy, so that two versions can be live during a deploy; the difference is only reported."""

    def __init__(self, queues: QueueRegistry, store: QueueStore, telemetry: Telemetry) -> None:
        self._queues = queues
        self._store = store
        self._telemetry = telemetry
        self._has_looked = False

    def look(self) -> tuple[str, ...]:
        """What differs, at the first call that reaches storage; nothing afterwards."""
        if self._has_looked:
            return ()
        try:
            stored = self._store.read_policies()
        except RunlaneError as error:
            self._telemetry.emit("queue.drift_unknown", error=error.code)
            return ()
        self._has_looked = True
        found = tuple(filter(None, (self._difference(queue, stored.get(queue.name)) for queue in self._queues)))
        for difference in found:
            self._telemetry.emit("queue.drift", detail=difference)
        return found

    def _difference(self, code: Queue, stored: Queue | None) -> str | None:
        if stored is None:
            return f"queue {code.name!r} is not stored yet; `runlane migrate` stores it"
        return drift(code, stored)
