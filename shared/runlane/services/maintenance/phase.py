"""What a maintenance phase is given, and what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from runlane.ports.maintenance import MaintenanceStore, PhaseResult
from runlane.ports.schedules import ScheduleStore
from runlane.ports.telemetry import Telemetry
from runlane.services.payload import AnyTask
from runlane.services.publish import Publisher
from runlane.services.settle import Settler

LIMIT = 500
"""The most rows of one step."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    store: MaintenanceStore
    schedules: ScheduleStore
    publisher: Publisher
    settler: Settler
    tasks: Mapping[str, AnyTask]
    telemetry: Telemetry
    keep_for: timedelta | None = None
    """How long ended runs are kept; None: for ever."""

    def published(self, result: PhaseResult) -> PhaseResult:
        """Send what a step set free, after its commit."""
        self.publisher.publish(result.wakeups)
        return result


@dataclass(frozen=True, slots=True)
class Phase:
    """`step` does a bounded part in a transaction of its own, is safe when run twice at once, and is repeated at once while it says `more`.

    A step that could do nothing may say `more` only if what it found is out of the way of the next one.
    """

    name: str
    step: Callable[[Upkeep], PhaseResult]
