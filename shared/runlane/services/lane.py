"""One storage and one transport, paired."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from runlane.ports.transport import DeliveryMessage, Transport

if TYPE_CHECKING:
    from runlane.ports.source import MessageSource
    from runlane.ports.storage import Storage

Sources = Callable[[Collection[str]], "Sequence[MessageSource]"]
"""From queues to what carries their messages, for a consumer to receive from."""

ParseWakeup = Callable[[str, str], DeliveryMessage]
"""From a message's body and the environment served to what it asks for; `ContractError` when it cannot be read."""


GiveBack = Callable[[Sequence[Mapping[str, Any]], Collection[str]], None]
"""Given a Lambda event's records and the ids of those that are returned: has the transport show them again soon. May raise
`UnavailableError`; they come again anyway, later."""


class LaneTransport(Transport, Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """`parse_wakeup` reads what the transport delivers; without it only parsed records can be delivered. `sources`: without them no
    worker consumes. `transport` None: nothing is published, and only workers that poll start runs."""

    storage: Storage
    transport: LaneTransport | None
    parse_wakeup: ParseWakeup | None = None
    sources: Sources | None = None
    give_back: GiveBack | None = None

    def ordered(self, queues: Iterable[str]) -> Iterator[str]:
        """Those whose runs start only as the transport delivers them."""
        if (transport := self.transport) is not None:
            yield from (queue for queue in queues if transport.keeps_order(queue))
