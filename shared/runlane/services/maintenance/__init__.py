"""One pass of repair: the phases in order, a step each, round after round until nothing is left or the time is up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf

from runlane.ports.clock import Clock
from runlane.ports.telemetry import Telemetry
from runlane.services.maintenance.dispatch_queues import dispatch_queues
from runlane.services.maintenance.due_timers import due_timers
from runlane.services.maintenance.ensure_partitions import ensure_partitions
from runlane.services.maintenance.expire_deadlines import expire_deadlines
from runlane.services.maintenance.expire_dispatches import expire_dispatches
from runlane.services.maintenance.fold_recorded import fold_recorded
from runlane.services.maintenance.materialize_schedules import materialize_schedules
from runlane.services.maintenance.phase import Phase, Upkeep
from runlane.services.maintenance.publish_unpublished import publish_unpublished
from runlane.services.maintenance.recover_leases import recover_leases
from runlane.services.maintenance.retain import retain

_SECOND = timedelta(seconds=1)
PHASES = (
    Phase("materialize_schedules", materialize_schedules),
    Phase("due_timers", due_timers),
    Phase("fold_recorded", fold_recorded),
    Phase("expire_dispatches", expire_dispatches),
    Phase("recover_leases", recover_leases),
    Phase("expire_deadlines", expire_deadlines),
    Phase("dispatch_queues", dispatch_queues),
    Phase("publish_unpublished", publish_unpublished),
    Phase("ensure_partitions", ensure_partitions),
    Phase("retain", retain),
)


@dataclass(frozen=True, slots=True)
class TickReport:
    """`counts` by phase, in order. `failed`: phases that raised, and `note_tick` if the pass could not be noted. `unfinished`: phases with
    work left when the time was up."""

    counts: dict[str, int]
    failed: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()


class Maintenance:
    def __init__(self, upkeep: Upkeep, clock: Clock, telemetry: Telemetry, phases: Sequence[Phase] = PHASES) -> None:
        self._upkeep = upkeep
        self._clock = clock
        self._telemetry = telemetry
        self._phases = tuple(phases)

    def tick(self, time_budget: float = inf) -> TickReport:
        """One pass of at most about `time_budget` seconds. Every phase has a first step; a failing one stops no other."""
        started_at = self._clock.monotonic()
        counts = {phase.name: 0 for phase in self._phases}
        failed: list[str] = []
        left = list(self._phases)
        while left:
            left = [phase for phase in left if self._step(phase, counts, failed)]
            if self._clock.monotonic() - started_at >= time_budget:
                break
        self._upkeep.publisher.flush()
        gauges = self._note(failed)
        report = TickReport(counts, tuple(failed), tuple(phase.name for phase in left))
        self._telemetry.emit(
            "tick.done",
            counts=counts,
            failed=report.failed,
            unfinished=report.unfinished,
            gauges=gauges,
            seconds=self._clock.monotonic() - started_at,
        )
        return report

    def _step(self, phase: Phase, counts: dict[str, int], failed: list[str]) -> bool:
        """Whether the phase has more to do."""
        try:
            result = phase.step(self._upkeep)
        except Exception as error:  # The border around one phase: its trouble stops no other.
            failed.append(phase.name)
            self._telemetry.emit("phase.failed", phase=phase.name, error=repr(error))
            return False
        counts[phase.name] += result.count
        return result.more

    def _note(self, failed: list[str]) -> Mapping[str, int]:
        """For the doctor: when the last pass was, and what failed in it. What alarms ask for, in seconds."""
        try:
            gauges = self._upkeep.store.note_tick(failed)
            return {"oldest_due_seconds": gauges.oldest_due_for // _SECOND, "horizon_seconds": gauges.horizon_for // _SECOND}
        except Exception as error:  # As with a phase.
            failed.append("note_tick")
            self._telemetry.emit("phase.failed", phase="note_tick", error=repr(error))
            return {}
