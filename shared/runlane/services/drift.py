"""Tells once when the code's queue policies and schedules are not the ones in force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runlane.domain.errors import RunlaneError
from runlane.domain.queue import Queue
from runlane.domain.registry import QueueRegistry, drift
from runlane.ports.schedules import ScheduleStore
from runlane.ports.stores import QueueStore, ScheduleDefinition
from runlane.ports.telemetry import Telemetry

_SCHEDULES = {
    "created": "is not stored yet, so it does not fire; `runlane migrate` stores it",
    "updated": "is in force as it was before; `runlane migrate` stores what the code says",
    "removed": "is in force and no longer in the code; `runlane migrate` removes it",
}


class DriftWatch:
    """Dispatch obeys the stored policies, and ticks fire the stored schedules, so that two versions can be live during a deploy.

    What differs is only reported.
    """

    def __init__(
        self,
        queues: QueueRegistry,
        store: QueueStore,
        schedules: Sequence[ScheduleDefinition],
        schedule_store: ScheduleStore,
        telemetry: Telemetry,
    ) -> None:
        self._queues = queues
        self._store = store
        self._schedules = schedules
        self._schedule_store = schedule_store
        self._telemetry = telemetry
        self._has_looked = False

    def look(self) -> tuple[str, ...]:
        """What differs, at the first call that reaches storage; nothing afterwards."""
        if self._has_looked:
            return ()
        try:
            found = (*self._policies(), *self._timings())
        except RunlaneError as error:
            self._telemetry.emit("queue.drift_unknown", error=error.code)
            return ()
        self._has_looked = True
        for event, difference in found:
            self._telemetry.emit(event, detail=difference)
        return tuple(difference for _, difference in found)

    def _policies(self) -> Iterator[tuple[str, str]]:
        stored = self._store.read_policies()
        for difference in filter(None, (self._difference(queue, stored.get(queue.name)) for queue in self._queues)):
            yield "queue.drift", difference

    def _timings(self) -> Iterator[tuple[str, str]]:
        for schedule_id, change in self._schedule_store.compare(self._schedules).items():
            yield "schedule.drift", f"schedule {schedule_id!r} {_SCHEDULES[change]}"

    def _difference(self, code: Queue, stored: Queue | None) -> str | None:
        if stored is None:
            return f"queue {code.name!r} is not stored yet; `runlane migrate` stores it"
        return drift(code, stored)
