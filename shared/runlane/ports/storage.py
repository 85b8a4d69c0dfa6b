"""The storage half of a lane: one store a subject."""

from __future__ import annotations

from typing import Protocol

from runlane.ports.stores import DeliveryStore, MaintenanceStore, QueueStore, RunStore, TriggerStore


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
    def queues(self) -> QueueStore: ...

    def close(self) -> None: ...
