"""What operators ask of storage: one method, one transaction, unless it says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from runlane.domain.ids import RunId
from runlane.domain.run import Status
from runlane.ports.stores import ClaimedRun, NewRun, RecordedRun, Wakeup


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run recorded to be executed at once. Without a `claim`, another run owns its key, and `run` names that one."""

    run: RecordedRun
    claim: ClaimedRun | None = None
    wakeups: tuple[Wakeup, ...] = ()
    starved_queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """What a retry or a rerun of a run is made of."""

    run_id: RunId
    task: str
    queue: str
    status: Status
    payload: str
    tenant: str | None
    concurrency_key: str | None
    priority: int
    singleton_key: str | None
    meta: Mapping[str, Any] | None
    child_id: RunId | None
    """The run that it was retried as."""


@dataclass(frozen=True, slots=True)
class RefusedOrigin:
    """No child was made. `child_id` is set with `already_retried`."""

    code: str
    child_id: RunId | None = None


@dataclass(frozen=True, slots=True)
class ChildBatch:
    """Children and refusals by the id of the run that they are of."""

    children: Mapping[RunId, RecordedRun] = field(default_factory=dict)
    refused: Mapping[RunId, RefusedOrigin] = field(default_factory=dict)
    wakeups: tuple[Wakeup, ...] = ()
    starved_queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RescheduleAnswer:
    """`is_refused`: the run does not wait, and nothing was written; `status` is its status then."""

    status: Status
    is_refused: bool
    wakeups: tuple[Wakeup, ...] = ()


@dataclass(frozen=True, slots=True)
class PruneFilter:
    older_than: timedelta
    statuses: frozenset[Status]
    task: str | None = None
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class PruneStep:
    """One bounded step. Of `matched` runs `pruned` went; the others keep an idempotency key, or were in use. `last`: where to go on."""

    matched: int
    pruned: int
    last: RunId | None


class OperationStore(Protocol):
    def run_now(self, run: NewRun, *, lease_for: timedelta, worker: str) -> StartedRun:
        """Record and lease; `ConflictError` `queue_at_capacity`, `throttled`, `paused` or `singleton_active`, and nothing is recorded."""
        ...

    def read_origins(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Origin]:
        """Those that exist."""
        ...

    def rerun_runs(self, runs: Sequence[NewRun], *, only_failed: bool) -> ChildBatch:
        """Record children of the runs that `source_run_id` names, and dispatch them; `only_failed`: once each, of failed ones."""
        ...

    def cancel_runs(
        self, run_ids: Collection[RunId], *, actor: str | None, reason: str | None
    ) -> tuple[Mapping[RunId, Status], tuple[Wakeup, ...]]:
        """The status of each afterwards; a run that is missing had ended."""
        ...

    def reschedule_run(self, run_id: RunId, run_at: datetime, *, actor: str | None) -> RescheduleAnswer | None:
        """None: there is no such run."""
        ...

    def prune_runs(self, prune_filter: PruneFilter, *, after: RunId | None, limit: int, dry_run: bool) -> PruneStep:
        """Delete up to `limit` ended runs, oldest first, after one; dry: only count them."""
        ...
