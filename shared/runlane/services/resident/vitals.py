"""What a resident worker can say of its health."""

from __future__ import annotations

from runlane.ports.clock import Clock


class Vitals:
    """When the last contacts were; nothing before the first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._storage_at: float | None = None
        self._transport_at: float | None = None

    @property
    def storage_age(self) -> float | None:
        """Seconds since storage last answered."""
        return None if self._storage_at is None else self._clock.monotonic() - self._storage_at

    @property
    def transport_age(self) -> float | None:
        return None if self._transport_at is None else self._clock.monotonic() - self._transport_at

    def note_storage(self) -> None:
        self._storage_at = self._clock.monotonic()

    def note_transport(self) -> None:
        self._transport_at = self._clock.monotonic()
