"""The storage half of a lane: one store a subject."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from runlane.ports.bell import Bell
from runlane.ports.maintenance import MaintenanceStore
from runlane.ports.operations import OperationStore
from runlane.ports.schedules import ScheduleStore
from runlane.ports.stores import DeliveryStore, QueueStore, RunStore, TriggerStore


class Storage(Protocol):
    @property
    def triggers(self) -> TriggerStore: ...

    @property
    def deliveries(self) -> DeliveryStore: ...

    @property
    def maintenance(self) -> MaintenanceStore: ...

    @property
    def runs(self) -> RunStore: ...

    @property
    def operations(self) -> OperationStore: ...

    @property
    def queues(self) -> QueueStore: ...

    @property
    def schedules(self) -> ScheduleStore: ...

    def bell(self, queues: Collection[str]) -> Bell:
        """Rings when runs are dispatched on these queues; a connection of its own, opened by it."""
        ...

    def close(self) -> None: ...
