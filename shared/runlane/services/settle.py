"""Outcomes of a group of attempts into storage; what they set free comes back as wakeups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import NamedTuple

from runlane.domain.errors import ConflictError, UnavailableError
from runlane.domain.ids import RunId
from runlane.domain.outcome import Settlement
from runlane.ports.clock import Clock
from runlane.ports.stores import ClaimBatch, DeliveryStore, SettleBatch, Wakeup
from runlane.ports.telemetry import Telemetry
from runlane.services.patience import Patience, brief
from runlane.services.publish import Publisher

Meanwhile = Callable[[], None]
"""Called before each further try, for what cannot wait as long as storage is out of reach."""


class NextClaim(NamedTuple):
    """What to go on with in the transaction that settles: up to `limit` of these queues' oldest dispatch rows."""

    queues: Collection[str]
    limit: int
    lease_for: timedelta
    worker: str


class SettleReport:
    """`wakeups` are still to be published. `unsettled`: nothing could be written. `claimed`: set if there was something to go on with."""

    __slots__ = ("claimed", "unsettled", "wakeups")

    def __init__(self) -> None:
        self.claimed: ClaimBatch | None = None
        self.wakeups: list[Wakeup] = []
        self.unsettled: list[RunId] = []


class Settler:
    def __init__(self, store: DeliveryStore, publisher: Publisher, clock: Clock, telemetry: Telemetry, patience: Patience = brief) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._telemetry = telemetry
        self._patience = patience

    def settle(self, settlements: Sequence[Settlement]) -> SettleReport:
        """Write them in one transaction, then publish. Never raises for what cannot be written."""
        report = self.write(settlements)
        self._publisher.publish(report.wakeups)
        return report

    def write(self, settlements: Sequence[Settlement], then: NextClaim | None = None, meanwhile: Meanwhile = lambda: None) -> SettleReport:
        """Only write them, and claim what to go on with; a group that storage chokes on is tried one by one, without a claim."""
        report = SettleReport()
        if settlements:
            self._write(settlements, then, report, meanwhile)
        return report

    def _write(self, settlements: Sequence[Settlement], then: NextClaim | None, report: SettleReport, meanwhile: Meanwhile) -> None:
        try:
            batch, report.claimed = self._patiently(settlements, then, meanwhile)
        except Exception as error:  # The border around one record: its trouble must not take its neighbours along.
            self._divide(settlements, report, meanwhile, error)
            return
        self._tell(settlements, batch)
        report.wakeups += batch.wakeups

    def _patiently(
        self, settlements: Sequence[Settlement], then: NextClaim | None, meanwhile: Meanwhile
    ) -> tuple[SettleBatch, ClaimBatch | None]:
        tried = 0
        while True:
            tried += 1
            try:
                return self._once(settlements, then)
            except (UnavailableError, ConflictError) as error:
                pause = self._patience(tried, error)
                if pause is None:
                    raise
            self._clock.sleep(pause)
            meanwhile()
            # A connection that died may have taken the answer of a commit along.
            settlements = [settlement._replace(tried_before=True) for settlement in settlements]

    def _once(self, settlements: Sequence[Settlement], then: NextClaim | None) -> tuple[SettleBatch, ClaimBatch | None]:
        if then is None:
            return self._store.settle_runs(settlements), None
        return self._store.settle_and_claim(settlements, then.queues, limit=then.limit, lease_for=then.lease_for, worker=then.worker)

    def _divide(self, settlements: Sequence[Settlement], report: SettleReport, meanwhile: Meanwhile, error: Exception) -> None:
        if len(settlements) > 1 and not isinstance(error, UnavailableError):
            for settlement in settlements:
                self._write([settlement], None, report, meanwhile)
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
                    detail=failure.message,
                )
