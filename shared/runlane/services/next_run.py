"""One dispatched run, executed here and now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import inf

from runlane.domain.errors import UnavailableError
from runlane.domain.ids import RunId
from runlane.ports.stores import ClaimBatch, Wakeup
from runlane.services.batch import Batch
from runlane.services.budget import TimeBudget
from runlane.services.worker import Worker


class OneRun:
    """An intake that is closed when it has been asked."""

    next_at = -inf

    def __init__(self, worker: Worker, queues: Collection[str]) -> None:
        self.is_open = True
        self.taken = ClaimBatch()
        self._worker = worker
        self._queues = queues

    def take(self, room: int) -> ClaimBatch:
        self.is_open = False
        settings = self._worker.settings
        self.taken = self._worker.store.claim_oldest(self._queues, limit=1, lease_for=settings.lease_for, worker=settings.name)
        return self.taken

    def rest(self, now: float) -> None:
        return None

    def tend(self, now: float) -> tuple[Wakeup, ...]:
        return ()


def execute_next(worker: Worker, queues: Collection[str]) -> RunId | None:
    """Claim the oldest dispatch row of these queues, execute its run and settle it; the run, or None if nothing is dispatched.

    Waits for a place if other deliveries of the process hold all. Raises `UnavailableError` when storage was out of reach, or
    when attempts that ignore their deadlines hold every place.
    """
    worker.require_unclogged()
    alone = replace(worker, settings=worker.settings._replace(continue_inline_for=0.0))
    intake = OneRun(alone, queues)
    batch = Batch(alone, TimeBudget(worker.clock, None, worker.settings.deadline_margin), {}, intake=intake)
    batch.run()
    if batch.failed:
        raise UnavailableError("delivery_failed", "delivery: storage was out of reach; the run is recovered when its lease has expired")
    return intake.taken.claims[0].run_id if intake.taken.claims else None
