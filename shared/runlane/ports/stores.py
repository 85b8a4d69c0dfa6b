"""What the use cases ask of durable storage: one method, one transaction.

Every method may raise `UnavailableError` (the database is out of reach, retryable). Expected refusals are
values. Times come from the database's clock; nothing here takes a caller's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from runlane.domain.ids import RunId
from runlane.domain.options import SingletonMode
from runlane.domain.outcome import Settlement
from runlane.domain.queue import Queue
from runlane.domain.run import Source, Status, TriggerOutcome
from runlane.domain.schedule import Timing

if TYPE_CHECKING:
    from runlane.domain.records import AttemptRecord, EventRecord, Page, QueueStats, RunFilter, RunRecord


class NewRun(NamedTuple):
    """One run as `trigger` records it: validated, its payload already JSON text."""

    task: str
    queue: str
    payload: str
    tenant: str | None = None
    concurrency_key: str | None = None
    priority: int = 0
    delay: timedelta | None = None
    run_at: datetime | None = None
    idempotency_key: str | None = None
    idempotency_ttl: timedelta | None = None
    """How long a succeeded or cancelled owner keeps the key; None: only while the owner is active."""
    payload_hash: str | None = None
    """Hex SHA-256 of the canonical JSON, set when there is an idempotency key."""
    singleton_key: str | None = None
    singleton_mode: SingletonMode = "return"
    max_attempts: int = 3
    start_timeout: timedelta | None = None
    finish_timeout: timedelta | None = None
    actor: str | None = None
    trace: Mapping[str, str] | None = None
    meta: Mapping[str, Any] | None = None
    source: Source | None = None
    """What made it, if not a plain trigger."""
    source_run_id: RunId | None = None
    """The run that it is a child of, with `manual_retry` and `rerun`."""
    reason: str | None = None
    """Why an operator made it, for its history."""

    @property
    def shared(self) -> tuple[Any, ...]:
        """All after what each run of a call has of its own: payload, tenant, key and priority."""
        return self[6:]


class ScheduleDefinition(NamedTuple):
    """A schedule as it is put in force: everything that its runs are made of, so that firing needs none of the code."""

    schedule_id: str
    timing: Timing
    enabled: bool
    run: NewRun


class RecordedRun(NamedTuple):
    """What became of one `NewRun`, in input order. A duplicate names its owner's run."""

    run_id: RunId
    outcome: TriggerOutcome
    status: Status
    due_at: datetime
    payload_matches: bool | None


class Wakeup(NamedTuple):
    """A request for a dispatch, to be published; it names a run and is never a right to run it."""

    run_id: RunId
    queue: str
    tenant: str | None = None
    concurrency_key: str | None = None
    delay: timedelta = timedelta(0)
    """Time until it may start, when it was stored: to the due time of a hint, to its turn under a throttle, else zero."""
    hint: bool = False
    """Sent ahead for a run that is not due yet; it has no dispatch row."""
    trace: Mapping[str, str] | None = None


class TriggerBatch(NamedTuple):
    runs: tuple[RecordedRun, ...]
    wakeups: tuple[Wakeup, ...] = ()
    starved_queues: tuple[str, ...] = ()
    """Queues whose dispatch window was full: ask `dispatch` once more after the commit, so that none is overlooked."""


class ClaimedRun(NamedTuple):
    """A run under this process's lease, with all that an attempt needs."""

    run_id: RunId
    token: str
    task: str
    queue: str
    payload: str
    attempt: int
    failures: int
    max_attempts: int
    tenant: str | None
    concurrency_key: str | None
    due_at: datetime
    created_at: datetime
    claimed_at: datetime
    trace: Mapping[str, str] | None = None
    meta: Mapping[str, Any] | None = None


RefusalReason = Literal["not_found", "terminal", "leased", "not_due", "at_capacity", "throttled", "paused", "task_unknown"]


class Refusal(NamedTuple):
    """Why a wakeup led to no attempt; always acknowledged."""

    run_id: RunId
    reason: RefusalReason
    due_in: timedelta | None = None
    """Time to the due time, with `not_due`; with `throttled`, until it may start, if that is soon."""


class ExpiredLease(NamedTuple):
    """A lease that time has passed by: recovery is permitted, and guarded by token and expiry when it settles."""

    run_id: RunId
    token: str
    task: str
    queue: str
    attempt: int
    failures: int
    max_attempts: int
    cancellation_requested: bool


class ClaimBatch(NamedTuple):
    claims: tuple[ClaimedRun, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    expired: tuple[ExpiredLease, ...] = ()
    """Leases of the wakeups' runs that have expired: recover them in place, then the run is due again by its retry policy."""
    wakeups: tuple[Wakeup, ...] = ()


class SettledRun(NamedTuple):
    run_id: RunId
    status: Status


class SettleBatch(NamedTuple):
    settled: tuple[SettledRun, ...]
    refused: tuple[RunId, ...]
    """Runs whose token was no longer stored: nothing was written but the refusal."""
    wakeups: tuple[Wakeup, ...] = ()


class PublishResult(NamedTuple):
    """What became of one wakeup at the transport."""

    run_id: RunId
    published: bool
    retryable: bool = True
    error: str | None = None
    hint: bool = False


class PublishMark(NamedTuple):
    """A result to be written. `age`: seconds since it was handed to the transport; a wakeup of the run that is younger is another one."""

    result: PublishResult
    age: float = 0.0


class LeaseState(NamedTuple):
    """One of this process's leases after a heartbeat; a lease that is missing from the answer is lost."""

    run_id: RunId
    cancellation_requested: bool


class Look(NamedTuple):
    """What an idle worker may have to do. `due_in`: time to the next timer of any queue, negative when it is late; None: there is none
    within five minutes. `starts_in`: the same to the next look at these queues that their throttles make worth while; None: no throttled
    run waits."""

    is_dispatched: bool
    recorded: tuple[str, ...] = ()
    """Queues with runs that nobody has dispatched since they were recorded, or since their throttle permits it."""
    due_in: timedelta | None = None
    starts_in: timedelta | None = None


class TriggerStore(Protocol):
    """Records new runs and sends them on their way."""

    def trigger_runs(self, runs: Sequence[NewRun], *, eager: bool) -> TriggerBatch:
        """Record in one transaction; eager: also dispatch what has capacity. Not eager: reserves nothing."""
        ...

    def record_runs(self, connection: Any, runs: Sequence[NewRun]) -> TriggerBatch:
        """Record inside the caller's open transaction: inserts of own rows only, no shared row locked, no wakeups."""
        ...

    def dispatch(self, queues: Collection[str]) -> tuple[Wakeup, ...]:
        """Fold what joined transactions recorded on these queues and give their free capacity out in fair order."""
        ...

    def mark_published(self, marks: Sequence[PublishMark]) -> None:
        """Write the publish statuses of dispatch rows, and of hints that failed."""
        ...


class DeliveryStore(Protocol):
    """The worker's floor: claim, heartbeat, settle."""

    def claim_runs(self, run_ids: Sequence[RunId], *, lease_for: timedelta, worker: str, own_only: bool = False) -> ClaimBatch:
        """Turn wakeups into leases; a wakeup without a dispatch row makes its run ready and claims what the fair order picks.

        own_only: claims none but these runs; what else is picked is answered as wakeups.
        """
        ...

    def forward_runs(self, run_ids: Sequence[RunId]) -> ClaimBatch:
        """Make these runs ready and dispatch in fair order, claiming none: wakeups, refusals and expired leases are answered."""
        ...

    def claim_oldest(self, queues: Collection[str], *, limit: int, lease_for: timedelta, worker: str) -> ClaimBatch:
        """Lease the oldest unclaimed dispatch rows of these queues, without a trip through the transport."""
        ...

    def look(self, queues: Collection[str]) -> Look:
        """What there may be to do on these queues; reads only."""
        ...

    def heartbeat(self, leases: Mapping[RunId, str], *, lease_for: timedelta) -> tuple[LeaseState, ...]:
        """Extend every lease whose token is still stored, in one statement."""
        ...

    def read_leases(self, leases: Mapping[RunId, str]) -> tuple[LeaseState, ...]:
        """Read cancellations without extending anything."""
        ...

    def settle_runs(self, settlements: Sequence[Settlement]) -> SettleBatch:
        """Write outcomes, events, freed capacity and the next dispatch rows in one transaction and one round trip."""
        ...

    def settle_and_claim(
        self, settlements: Sequence[Settlement], queues: Collection[str], *, limit: int, lease_for: timedelta, worker: str
    ) -> tuple[SettleBatch, ClaimBatch]:
        """`settle_runs` and `claim_oldest` in one transaction; a run claimed here is not among the wakeups, which are the claim's."""
        ...


class RunStore(Protocol):
    """Reads and control of single runs."""

    def get_run(self, run_id: RunId) -> RunRecord | None: ...

    def list_runs(self, run_filter: RunFilter, *, limit: int, cursor: str | None) -> Page: ...

    def list_events(self, run_id: RunId) -> tuple[EventRecord, ...]: ...

    def list_attempts(self, run_id: RunId) -> tuple[AttemptRecord, ...]: ...

    def cancel_run(self, run_id: RunId, *, actor: str | None, reason: str | None) -> tuple[Status | None, tuple[Wakeup, ...]]:
        """The status after the request (None: no such run; a terminal status: it had already ended) and the wakeups of freed capacity."""
        ...

    def find_owner(
        self, task: str, *, singleton_key: str | None = None, idempotency_key: str | None = None, retained: bool = False
    ) -> RunRecord | None:
        """Who owns one of the keys now; with `retained`, a run that has ended and still keeps its idempotency key, too."""
        ...

    def reset_idempotency_key(self, task: str, key: str) -> bool: ...


class QueueStore(Protocol):
    """Policies in force, pause, weights, counters."""

    def read_policies(self) -> dict[str, Queue]: ...

    def write_policies(self, queues: Sequence[Queue], *, actor: str | None) -> tuple[tuple[str, ...], tuple[Wakeup, ...]]:
        """Store the policies in force; the names of queues that changed, and wakeups that raised limits give out."""
        ...

    def stats(self, queues: Collection[str] | None = None) -> tuple[QueueStats, ...]: ...

    def pause(self, queue: str, *, tenant: str | None, concurrency_key: str | None, actor: str | None) -> tuple[int, tuple[Wakeup, ...]]:
        """Give unclaimed dispatch rows back and dispatch no more; the number given back, and who got the room that they leave."""
        ...

    def resume(self, queue: str, *, tenant: str | None, concurrency_key: str | None, actor: str | None) -> tuple[Wakeup, ...]: ...

    def set_weight(self, queue: str, tenant: str, weight: int) -> None: ...
