"""What the demo did, and whether everything that must hold does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from runlane.adapters.postgres.audit import PostgresAudit, RunCounts
from runlane.cli.demo.plan import NOISY, Plan
from runlane.cli.demo.story import Facts
from runlane.domain.verification import Violation


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """retried, recovered: runs; released: times; highest: most slots held at once, by a partition or by the queue, as `limit` says.

    Waits are from due to the first attempt; of the noisy customer's runs and of all others.
    """

    queue: str
    triggered: int
    succeeded: int
    failed: int
    cancelled: int
    retried: int
    recovered: int
    released: int
    limit: int | None
    highest: int | None
    noisy_p50: timedelta | None
    noisy_p99: timedelta | None
    quiet_p50: timedelta | None
    quiet_p99: timedelta | None


@dataclass(frozen=True, slots=True)
class Check:
    text: str
    holds: bool
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """`play_seconds`: from the first trigger to the last end; `seconds`: with servers and workers starting."""

    queues: tuple[QueueSummary, ...]
    checks: tuple[Check, ...]
    play_seconds: float
    seconds: float

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)


def summaries(audit: PostgresAudit) -> tuple[QueueSummary, ...]:
    waits = {(wait.queue, wait.is_named): wait for wait in audit.waits([NOISY])}
    histories = {history.queue: history for history in audit.history_counts()}
    found = []
    for runs in audit.run_counts():
        history, noisy, quiet = histories[runs.queue], waits.get((runs.queue, True)), waits.get((runs.queue, False))
        is_total = history.concurrency_limit is None and history.total_limit is not None
        found.append(
            QueueSummary(
                queue=runs.queue,
                triggered=runs.recorded,
                succeeded=runs.succeeded,
                failed=runs.failed,
                cancelled=runs.cancelled,
                retried=history.retried,
                recovered=history.recovered,
                released=history.released,
                limit=history.total_limit if is_total else history.concurrency_limit,
                highest=history.highest_in_queue if is_total else history.highest_in_partition,
                noisy_p50=None if noisy is None else noisy.p50,
                noisy_p99=None if noisy is None else noisy.p99,
                quiet_p50=None if quiet is None else quiet.p50,
                quiet_p99=None if quiet is None else quiet.p99,
            )
        )
    return tuple(found)


def checks(audit: PostgresAudit, plan: Plan, facts: Facts, queues: tuple[QueueSummary, ...]) -> tuple[Check, ...]:
    """The invariants of every environment, and what this demo promised."""
    kept = [Check(finding.invariant, finding.holds, tuple(map(_shown, finding.violations))) for finding in audit.check()]
    return (*_promised(audit.run_counts(), plan, facts, queues), *kept)


def _promised(runs: tuple[RunCounts, ...], plan: Plan, facts: Facts, queues: tuple[QueueSummary, ...]) -> Iterator[Check]:
    ended = sum(queue.ended for queue in runs)
    yield _equal("every run that was triggered has ended", facts.triggered, plan.runs, ended)
    yield _equal("repeated triggers with an idempotency key made no run", facts.duplicates, plan.duplicates)
    yield _equal("those runs failed for good that were meant to", sum(queue.failed for queue in queues), plan.failures)
    yield _equal("those runs were cancelled that were asked to", sum(queue.cancelled for queue in queues), len(facts.cancelled))
    # A busy machine may let a living worker's lease expire as well, so there may be more.
    recovered = sum(queue.recovered for queue in queues)
    text = f"the killed worker held {facts.lost_leases} and recovered are {recovered}"
    yield Check("what the killed worker held was recovered", facts.lost_leases > 0 and recovered > 0, (text,))


def _equal(text: str, *values: int) -> Check:
    return Check(text, len(set(values)) == 1, (f"should be equal: {', '.join(map(str, values))}",))


def _shown(violation: Violation) -> str:
    return f"{violation.subject} {violation.fault}"
