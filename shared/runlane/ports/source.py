"""Where a consumer gets the transport's messages from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Message(NamedTuple):
    """One received message. `receipt` is what it is deleted by; `record` is how Lambda would show it; `group`: of a FIFO queue."""

    message_id: str
    receipt: str
    record: Mapping[str, Any]
    group: str | None = None


class MessageSource(Protocol):
    """One queue of the transport; safe to share between threads. Every method but `close` may raise `UnavailableError`."""

    def receive(self, limit: int, *, wait_for: float, hidden_for: float) -> Sequence[Message]:
        """Up to `limit` (1 to 10) messages, after up to `wait_for` seconds; others do not see them for `hidden_for` seconds."""
        ...

    def delete(self, receipts: Collection[str]) -> None: ...

    def hide(self, receipts: Collection[str], seconds: float) -> None:
        """From now on, others see these messages in so many seconds; 0: at once."""
        ...

    def close(self) -> None: ...
