"""One storage and one transport, paired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from runlane.ports.storage import Storage
from runlane.ports.transport import DeliveryMessage, Transport

ParseWakeup = Callable[[str, str], DeliveryMessage]
"""From a message's body and the environment served to what it asks for; `ContractError` when it cannot be read."""


class LaneTransport(Transport, Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """`parse_wakeup` reads what the transport delivers; without it only parsed records can be delivered."""

    storage: Storage
    transport: LaneTransport
    parse_wakeup: ParseWakeup | None = None
