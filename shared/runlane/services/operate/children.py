"""Runs made again: retries of failed ones, reruns of any that has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runlane.domain.errors import ConflictError, NotFoundError, RunlaneError
from runlane.domain.ids import RunId
from runlane.domain.run import TERMINAL, Source, Status
from runlane.ports.operations import OperationStore, Origin, RefusedOrigin
from runlane.ports.stores import NewRun, RecordedRun, TriggerBatch
from runlane.services.new_run import NewRuns
from runlane.services.operate.arguments import checked_key, checked_reason, run_not_found
from runlane.services.trigger import Trigger, TriggeredRun, TriggerResult


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be made of runs, by whom and why."""

    source: Source
    actor: str | None
    reason: str | None

    @property
    def is_retry(self) -> bool:
        return self.source is Source.MANUAL_RETRY

    @property
    def statuses(self) -> frozenset[Status]:
        """Those that such a run may have."""
        return frozenset({Status.FAILED}) if self.is_retry else TERMINAL

    @property
    def verb(self) -> str:
        return "retried" if self.is_retry else "rerun"


def wish_of(source: Source, actor: str | None, reason: str | None) -> Wish:
    return Wish(source, checked_key(actor, "actor"), checked_reason(reason))


@dataclass(slots=True)
class Answers:
    """By the id of the run that was to be made again."""

    made: dict[RunId, tuple[NewRun, RecordedRun]] = field(default_factory=dict)
    refused: dict[RunId, RunlaneError] = field(default_factory=dict)


class Children:
    def __init__(self, runs: NewRuns, store: OperationStore, trigger: Trigger) -> None:
        self._runs = runs
        self._store = store
        self._trigger = trigger

    def make(self, run_id: RunId, wish: Wish) -> TriggerResult:
        answers = self.make_all([run_id], wish)
        if refusal := answers.refused.get(run_id):
            raise refusal
        run, recorded = answers.made[run_id]
        child = TriggeredRun(recorded.run_id, run.task, run.queue, recorded.status, recorded.due_at)
        return TriggerResult(child, recorded.outcome, recorded.payload_matches)

    def make_all(self, run_ids: Sequence[RunId], wish: Wish) -> Answers:
        """In one transaction; what cannot be made again is refused by itself."""
        runs, answers = self._checked(run_ids, wish)
        if not runs:
            return answers
        batch = self._store.rerun_runs(list(runs.values()), only_failed=wish.is_retry)
        answers.made = {run_id: (runs[run_id], recorded) for run_id, recorded in batch.children.items()}
        answers.refused |= {run_id: _refusal(run_id, refused) for run_id, refused in batch.refused.items()}
        self._trigger.send(TriggerBatch((), batch.wakeups, batch.starved_queues))
        return answers

    def check_all(self, run_ids: Sequence[RunId], wish: Wish) -> Mapping[RunId, RunlaneError]:
        """Those that would be refused now; nothing is written."""
        return self._checked(run_ids, wish)[1].refused

    def _checked(self, run_ids: Sequence[RunId], wish: Wish) -> tuple[dict[RunId, NewRun], Answers]:
        origins, runs, answers = self._store.read_origins(run_ids), dict[RunId, NewRun](), Answers()
        for run_id in run_ids:
            try:
                runs[run_id] = self._child(run_id, origins.get(run_id), wish)
            except RunlaneError as error:
                answers.refused[run_id] = error
        return runs, answers

    def _child(self, run_id: RunId, origin: Origin | None, wish: Wish) -> NewRun:
        if origin is None:
            raise run_not_found(run_id)
        if origin.status not in wish.statuses:
            raise _refusal(run_id, RefusedOrigin("run_not_failed" if wish.is_retry else "run_not_ended"))
        if wish.is_retry and origin.child_id is not None:
            raise _refusal(run_id, RefusedOrigin("already_retried", origin.child_id))
        return self._runs.child(origin, wish.source, actor=wish.actor, reason=wish.reason)


def _refusal(run_id: RunId, refused: RefusedOrigin) -> ConflictError | NotFoundError:
    texts = {
        "run_not_failed": "has not failed; only failed runs are retried, any that has ended can be rerun",
        "run_not_ended": "has not ended; wait for it, or cancel it first",
        "already_retried": f"was retried as {refused.child_id}; retry that one, or rerun this one",
    }
    if refused.code not in texts:
        return run_not_found(run_id)
    child = {} if refused.child_id is None else {"child_run_id": refused.child_id}
    return ConflictError(refused.code, f"run {run_id} {texts[refused.code]}", retryable=False, meta={"run_id": run_id, **child})
