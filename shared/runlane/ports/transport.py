"""What the use cases ask of the transport: publish wakeups, decide nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from runlane.domain.ids import RunId
from runlane.ports.stores import PublishResult, Wakeup


class DeliveryMessage(NamedTuple):
    """One wakeup as it came back from the transport: which run, through which queue; never a right to run it."""

    run_id: RunId
    queue: str
    trace: Mapping[str, str] | None = None


def text_of(facts: Mapping[str, object], name: str) -> str:
    """A text of what an event says about a message; "" when there is none. An event may hold anything, and not all of it can be written."""
    found = facts.get(name)
    return found if isinstance(found, str) else ""


def attributes_of(message: Mapping[str, object]) -> Mapping[str, object]:
    """What SQS says of a message, as Lambda shows it; nothing where the event says something else."""
    found = message.get("attributes")
    return found if isinstance(found, Mapping) else {}


class Transport(Protocol):
    def publish(self, wakeups: Sequence[Wakeup]) -> tuple[PublishResult, ...]:
        """Send wakeups; results aligned with the input. Never raises for a failed send: that is a result."""
        ...

    def serves(self, queue: str) -> bool:
        """Whether the queue has a binding; asked at start-up, so that a missing one is refused before the first publish."""
        ...

    def keeps_order(self, queue: str) -> bool:
        """Whether the queue's wakeups are delivered in the order of their message groups, so that none may run where it comes otherwise."""
        ...
