"""Outcomes of a group of attempts into storage; what they set free comes back as wakeups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from runlane.domain.errors import UnavailableError
from runlane.domain.ids import RunId
from runlane.domain.outcome import Settlement
from runlane.ports.clock import Clock
from runlane.ports.stores import DeliveryStore, SettleBatch, Wakeup
from runlane.ports.telemetry import Telemetry
from runlane.services.publish import Publisher

PATIENCE = (0.1, 0.4, 1.0)
"""Seconds before each further try when storage is out of reach: an outcome is worth waiting for."""


@dataclass(slots=True)
class SettleReport:
    """`wakeups` are still to be published. `unsettled`: nothing could be written."""

    wakeups: list[Wakeup] = field(default_factory=list)
    unsettled: list[RunId] = field(default_factory=list)


class Settler:
    def __init__(self, store: DeliveryStore, publisher: Publisher, clock: Clock, telemetry: Telemetry) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._telemetry = telemetry

    def settle(self, settlements: Sequence[Settlement]) -> SettleReport:
        """Write them in one transaction, then publish. Never raises for what cannot be written."""
        report = self.write(settlements)
        self._publisher.publish(report.wakeups)
        return report

    def write(self, settlements: Sequence[Settlement]) -> SettleReport:
        """Only write them; a group that storage chokes on is tried one by one."""
        report = SettleReport()
        if settlements:
            self._write(settlements, report)
        return report

    def _write(self, settlements: Sequence[Settlement], report: SettleReport) -> None:
        try:
            batch = self._patiently(settlements)
        except Exception as error:  # The border around one record: its trouble must not take its neighbours along.
            self._divide(settlements, report, error)
            return
        self._tell(settlements, batch)
        report.wakeups += batch.wakeups

    def _patiently(self, settlements: Sequence[Settlement]) -> SettleBatch:
        for pause in PATIENCE:
            try:
                return self._store.settle_runs(settlements)
            except UnavailableError:
                self._clock.sleep(pause)
        return self._store.settle_runs(settlements)

    def _divide(self, settlements: Sequence[Settlement], report: SettleReport, error: Exception) -> None:
        if len(settlements) > 1 and not isinstance(error, UnavailableError):
            for settlement in settlements:
                self._write([settlement], report)
            return
        report.unsettled += [settlement.run_id for settlement in settlements]
        self._telemetry.emit("settle.failed", run_ids=report.unsettled, error=repr(error))

    def _tell(self, settlements: Sequence[Settlement], batch: SettleBatch) -> None:
        if batch.refused:
            self._telemetry.emit("settle.refused", run_ids=batch.refused)
        self._telemetry.emit("settle.done", statuses=Counter(settled.status for settled in batch.settled), refused=len(batch.refused))
        for settlement in settlements:
            failure = settlement.failure
            if failure is not None:
                self._telemetry.emit(
                    "attempt.failed",
                    run_id=settlement.run_id,
                    kind=settlement.kind,
                    code=failure.code,
                    type=failure.type,
                    message=failure.message,
                )
