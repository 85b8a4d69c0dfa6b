"""The storage half of a lane: one store a subject."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from runlane.ports.bell import Bell
from runlane.ports.maintenance import MaintenanceStore
from runlane.ports.operations import OperationStore
from runlane.ports.schedules import ScheduleStore
from runlane.ports.stores import DeliveryStore, QueueStore, RunStore, TriggerStore

if TYPE_CHECKING:
    from runlane.domain.verification import Invariant, Scope


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

    def verify(self, scope: Scope, limit: int) -> tuple[Invariant, ...]:
        """Every invariant that the scope allows to look at, with at most `limit` violations each; all of one snapshot."""
        ...

    def bell(self, queues: Collection[str]) -> Bell:
        """Rings when runs are dispatched on these queues; a connection of its own, opened by it."""
        ...

    def close(self) -> None: ...
