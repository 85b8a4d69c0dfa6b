"""One run, recorded and leased in one transaction, and its first attempt made in this process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Unpack

from runlane.domain.errors import ContractError, InvariantError
from runlane.domain.outcome import Failure
from runlane.domain.records import RunRecord
from runlane.domain.run import Source, TriggerOutcome
from runlane.ports.operations import OperationStore, StartedRun
from runlane.ports.stores import ClaimBatch, NewRun, RecordedRun, RunStore, TriggerBatch, Wakeup
from runlane.services.batch import Batch
from runlane.services.budget import TimeBudget
from runlane.services.heartbeat import Heartbeat
from runlane.services.new_run import NewRuns
from runlane.services.operate.arguments import run_not_found
from runlane.services.options import RunNowOptions, TriggerOptions
from runlane.services.payload import AnyTask
from runlane.services.pool import AttemptPool
from runlane.services.trigger import Trigger
from runlane.services.worker import Worker


@dataclass(frozen=True, slots=True)
class RunNowResult:
    """`run` is as it was left: ended, or waiting for what a retry or a release makes of it; with another `outcome` than `created` it is
    the run that owns the key, and nothing was executed. `failure` is the attempt's, also if the run is retried."""

    run: RunRecord
    outcome: TriggerOutcome
    failure: Failure | None = None
    payload_matches: bool | None = None

    @property
    def result(self) -> Any:
        """What the handler returned, as it is stored; None unless the run has succeeded."""
        return self.run.result


class NewLease:
    """An intake that records its one run and leases it when it is asked."""

    next_at = -inf

    def __init__(self, worker: Worker, store: OperationStore, run: NewRun) -> None:
        self.is_open = True
        self._started: StartedRun | None = None
        self._worker = worker
        self._store = store
        self._run = run

    def take(self, room: int) -> ClaimBatch:
        self.is_open = False
        settings = self._worker.settings
        self._started = started = self._store.run_now(self._run, lease_for=settings.lease_for, worker=settings.name)
        return ClaimBatch(() if started.claim is None else (started.claim,), wakeups=started.wakeups)

    def rest(self, now: float) -> None:
        return None

    def tend(self, now: float) -> tuple[Wakeup, ...]:
        return ()

    @property
    def started(self) -> StartedRun:
        if self._started is None:
            raise InvariantError("run_not_started", "run_now: its delivery ended before it asked for its run")
        return self._started


class RunNow:
    def __init__(self, worker: Worker, runs: NewRuns, store: OperationStore, reads: RunStore, trigger: Trigger) -> None:
        self._worker = worker
        self._runs = runs
        self._store = store
        self._reads = reads
        self._trigger = trigger

    def run_now(self, task: AnyTask, payload: Any, **options: Unpack[RunNowOptions]) -> RunNowResult:
        run = self._runs.make(task, payload, _without_times(options))._replace(source=Source.RUN_NOW)
        if run.queue in self._worker.settings.ordered_queues:
            raise ContractError(
                "queue_ordered", f"queue {run.queue!r} keeps its deliveries in order, and a run now would pass them by; trigger it"
            )
        worker = self._alone()
        intake = NewLease(worker, self._store, run)
        try:
            self._execute(worker, intake)
        finally:
            worker.pool.close()
        started = intake.started
        self._trigger.send(TriggerBatch((), (), started.starved_queues))
        return self._result(started.run, is_executed=started.claim is not None)

    def _alone(self) -> Worker:
        """A place of its own: a handler that runs another task now would wait for ever if handlers like it held all of the pool's."""
        worker = self._worker
        settings = worker.settings._replace(concurrency=1, continue_inline_for=0.0)
        heartbeat = Heartbeat(worker.store, worker.clock, worker.telemetry, lease_for=settings.lease_for, beside=worker.heartbeat)
        pool = AttemptPool(worker.pipeline, 1, beside=worker.pool)
        return replace(worker, settings=settings, pool=pool, heartbeat=heartbeat, exit_process=None)

    def _execute(self, worker: Worker, intake: NewLease) -> None:
        Batch(worker, TimeBudget(worker.clock, None, worker.settings.deadline_margin), {}, intake=intake).run()

    def _result(self, recorded: RecordedRun, *, is_executed: bool) -> RunNowResult:
        run = self._reads.get_run(recorded.run_id)
        if run is None:
            raise run_not_found(recorded.run_id)
        if not is_executed:
            return RunNowResult(run, recorded.outcome, None, recorded.payload_matches)
        first = self._reads.list_attempts(recorded.run_id)[:1]
        return RunNowResult(run, recorded.outcome, first[0].failure if first else None)


def _without_times(options: RunNowOptions) -> TriggerOptions:
    for name in ("delay", "run_at"):
        if name in options:
            raise ContractError("option_invalid", f"{name}: a run now is due now; trigger it instead", meta={"field": name})
    return {**options, "delay": None, "run_at": None}
