"""Attempts that go on past their deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from threading import Event, Thread

from runlane.domain.ids import RunId
from runlane.domain.outcome import Settlement
from runlane.services.attempt import Attempt
from runlane.services.budget import TimeBudget
from runlane.services.worker import Worker

LAST_PUBLISH = 0.25
"""Seconds for the wakeups of the last transaction: what it set free may start elsewhere while this process still lives."""


class Overtime:
    def __init__(self, worker: Worker, budget: TimeBudget, attempts: Mapping[RunId, Attempt]) -> None:
        self._worker = worker
        self._budget = budget
        self._attempts = attempts

    def interrupt(self, now: float) -> None:
        for attempt in self._attempts.values():
            if attempt.deadline is not None and now >= attempt.deadline and not attempt.interrupted:
                self._worker.pool.interrupt(attempt)

    def hung(self, now: float, *, alone: bool = False) -> list[Attempt]:
        """The attempts under way, if each has ignored its deadline for the whole grace; alone: those that have, whatever others do."""
        started = [attempt for attempt in self._attempts.values() if attempt.deadline is not None and attempt.settlement is None]
        hung = [attempt for attempt in started if attempt.interrupted and now >= (attempt.deadline or 0.0) + self._budget.grace]
        return hung if alone or len(hung) == len(started) else []

    def settle_last(self, hung: Sequence[Attempt]) -> None:
        """The process's last transaction, as timed out. It gets a grace at most, and no retry is due before the process has ended."""
        retries_in = timedelta(seconds=2 * self._budget.grace + LAST_PUBLISH + 1)
        settlements = [_not_before(self._worker.pipeline.decide(attempt, attempt.timed_out()), retries_in) for attempt in hung]
        is_written = Event()
        last = Thread(target=self._write, args=(settlements, is_written), name="runlane-last", daemon=True)
        last.start()
        if is_written.wait(self._budget.grace):
            last.join(LAST_PUBLISH)
        self._worker.telemetry.emit("worker.exits", run_ids=[one.run_id for one in settlements], is_settled=is_written.is_set())
        self._worker.telemetry.flush()

    def _write(self, settlements: Sequence[Settlement], is_written: Event) -> None:
        report = self._worker.settler.write(settlements)
        is_written.set()
        self._worker.publisher.publish(report.wakeups)


def settle_stray(worker: Worker, attempt: Attempt) -> None:
    """The thread of an attempt that nobody waited for has ended: only now are its lease and its slot given back."""
    worker.settler.settle([ended_as(worker, attempt)])
    worker.heartbeat.drop([attempt])
    worker.pool.count_strays(-1)


def ended_as(worker: Worker, attempt: Attempt) -> Settlement:
    """What is written of an attempt that has ended.

    What it returned when nobody waited for it any more counts if that was only for a stop, or an interruption of its caller.
    """
    is_late = attempt.is_stray and attempt.interrupted and not attempt.is_stopped
    if attempt.settlement is None or is_late:
        return worker.pipeline.decide(attempt, attempt.timed_out())
    return attempt.settlement


def _not_before(settlement: Settlement, delay: timedelta) -> Settlement:
    return settlement if settlement.delay is None else settlement._replace(delay=max(settlement.delay, delay))
