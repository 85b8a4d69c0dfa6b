"""Everything that is due, executed in this thread, one attempt after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from runlane.domain.durations import ZERO
from runlane.domain.errors import ConfigurationError, ContractError, UnavailableError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.records import RunSummary
from runlane.domain.run import Status
from runlane.ports.stores import ClaimedRun
from runlane.runtime import Runlane
from runlane.services.operate.runs import LARGEST_PAGE
from runlane.testing.due import aging_of
from runlane.testing.here import AttemptHere, execute_here, raise_to_the_test
from runlane.testing.outcome import TaskOutcome, outcome_of

MOST_ATTEMPTS = 1000
SHOWN_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class DrainedAttempt:
    run_id: RunId
    task: str
    attempt: int
    outcome: TaskOutcome

    def __str__(self) -> str:
        return f"{self.task} {self.run_id} attempt {self.attempt}: {self.outcome}"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """attempts: in the order in which they ran. waiting: runs that have not ended, newest first, at most 200."""

    attempts: tuple[DrainedAttempt, ...]
    waiting: tuple[RunSummary, ...]

    @property
    def failures(self) -> tuple[DrainedAttempt, ...]:
        """Attempts that failed, whether the run tries again or not."""
        return tuple(attempt for attempt in self.attempts if attempt.outcome.failure is not None)

    @property
    def counts(self) -> dict[str, int]:
        """Attempts by task."""
        return dict(Counter(attempt.task for attempt in self.attempts))

    def __str__(self) -> str:
        waits = [f"{run.task} {run.run_id} waits: {run.status}, due {run.due_at:%Y-%m-%d %H:%M:%S} UTC" for run in self.waiting]
        return "\n".join([*map(str, self.attempts), *waits]) or "nothing ran and nothing waits"


def drain(runlane: Runlane, *, through_delays: bool = False, limit: int = MOST_ATTEMPTS) -> DrainReport:
    """Execute whatever is due, and what follows from it, until nothing is; what ran, and what still waits.

    Maintenance runs too, so that deferred and joined triggers, expired leases and time-outs are served. Attempts run one after
    the other in this thread, in the order that dispatch gives them: a debugger, patches and open transactions work. Middleware and
    settling are production's; leases are not extended, so cancel a running run only through `run_task`.
    through_delays: when nothing is due, let the runs with the earliest due time be due (`make_due`), until nothing waits for its time.
    limit: `AssertionError` after so many attempts, with what ran: a run that releases itself for ever does not end.
    Handlers' exceptions are outcomes; see `report.failures`. Raises `ConfigurationError` for a run whose task is not registered.
    """
    if limit < 1:
        raise ContractError("option_invalid", f"limit: {limit!r} is no whole number from 1", meta={"field": "limit"})
    aging = aging_of(runlane) if through_delays else None
    done: list[DrainedAttempt] = []
    while True:
        _tick(runlane)
        before = len(done)
        for claim in _claims(runlane):
            if len(done) == limit:
                _hand_back(runlane, claim, "drain_limit")
                raise AssertionError(_endless(done))
            done.append(_execute(runlane, claim))
        if len(done) == before and not (aging and aging.make_earliest_due()):
            return DrainReport(tuple(done), _waiting(runlane))


def _tick(runlane: Runlane) -> None:
    if failed := runlane.tick()["failed"]:
        raise UnavailableError("drain_failed", f"drain: maintenance failed in {', '.join(failed)}; is the database in order?")


def _claims(runlane: Runlane) -> Iterator[ClaimedRun]:
    """What dispatch hands out, one at a time; what was set free by the attempt before is among it."""
    settings, store = runlane.parts.settings, runlane.parts.store
    queues = [queue.name for queue in runlane.queue_registry]
    while True:
        batch = store.claim_oldest(queues, limit=1, lease_for=settings.lease_for, worker=settings.name)
        runlane.parts.publisher.publish(batch.wakeups)
        if not batch.claims:
            return
        yield from batch.claims


def _execute(runlane: Runlane, claim: ClaimedRun) -> DrainedAttempt:
    parts = runlane.parts
    task = parts.tasks.get(claim.task)
    if task is None:
        _hand_back(runlane, claim, "task_unknown")
        raise ConfigurationError(f"task {claim.task!r} is not registered; add it to Runlane(tasks=[…])", code="task_unregistered")
    here = AttemptHere(claim, task, parts.clock)
    settlement = execute_here(parts.pipeline, here)
    settled = parts.store.settle_runs([settlement])
    parts.publisher.publish(settled.wakeups)
    raise_to_the_test(here.error)
    if settled.refused:
        raise AssertionError(
            f"drain: the result of {claim.task} {claim.run_id} was refused, as its lease was gone; did the test settle it?"
        )
    return DrainedAttempt(claim.run_id, claim.task, claim.attempt, outcome_of(settlement, settled.settled[0].status, here.error))


def _hand_back(runlane: Runlane, claim: ClaimedRun, reason: str) -> None:
    settlement = Settlement(claim.run_id, claim.token, OutcomeKind.HANDED_BACK, delay=ZERO, reason=reason)
    runlane.parts.publisher.publish(runlane.parts.store.settle_runs([settlement]).wakeups)


def _waiting(runlane: Runlane) -> tuple[RunSummary, ...]:
    return runlane.runs.list(status=[status for status in Status if not status.is_terminal], limit=LARGEST_PAGE).data


def _endless(done: list[DrainedAttempt]) -> str:
    found = f"drain: something is still due after {len(done)} attempts; give a larger limit=…, or look for a run that never ends. The last:"
    return "\n".join([found, *(f"  {attempt}" for attempt in done[-SHOWN_ATTEMPTS:])])
