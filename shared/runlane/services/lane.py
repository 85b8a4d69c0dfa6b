"""One storage and one transport, paired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from runlane.ports.stores import DeliveryStore, MaintenanceStore, QueueStore, RunStore, TriggerStore
from runlane.ports.transport import DeliveryMessage, Transport

ParseWakeup = Callable[[str, str], DeliveryMessage]
"""From a message's body and the environment served to what it asks for; `ContractError` when it cannot be read."""


class Storage(Protocol):
    """All stores of one environment."""

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


class LaneTransport(Transport, Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """`parse_wakeup` reads what the transport delivers; without it only parsed records can be delivered."""

    storage: Storage
    transport: LaneTransport
    parse_wakeup: ParseWakeup | None = None
