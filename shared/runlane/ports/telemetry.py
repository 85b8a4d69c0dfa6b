"""Where use cases say what happened; one subscriber turns it into logs and metrics. Services do not log."""

from __future__ import annotations

from typing import Any, Protocol


class Telemetry(Protocol):
    def emit(self, event: str, /, **facts: Any) -> None:
        """Report one fact by its dotted name, e.g. `delivery.refused`. Must not raise and must not carry payloads."""
        ...

    def flush(self) -> None:
        """Write what has been gathered; called at the end of each delivery and tick."""
        ...


class Silent:
    def emit(self, event: str, /, **facts: Any) -> None:
        return None

    def flush(self) -> None:
        return None
