"""Ports by hand, for the logic between them. None says anything about locks, order or durability: Postgres tests do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from runlane.domain.errors import ConfigurationError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.queue import Queue
from runlane.domain.records import QueueStats
from runlane.domain.run import Status, TriggerOutcome
from runlane.ports.maintenance import Gauges, PhaseResult
from runlane.ports.schedules import Change, DueSchedule, Materialized, Plan, Written
from runlane.ports.stores import (
    ClaimBatch,
    ClaimedRun,
    ExpiredLease,
    LeaseState,
    Look,
    NewRun,
    PublishMark,
    PublishResult,
    RecordedRun,
    ScheduleDefinition,
    SettleBatch,
    SettledRun,
    TriggerBatch,
    Wakeup,
)
from runlane.ports.transport import DeliveryMessage

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_ids = count(1)

ENDS = {OutcomeKind.SUCCEEDED: Status.SUCCEEDED, OutcomeKind.FAILED: Status.FAILED, OutcomeKind.RETRY: Status.RETRYING}


def run_id() -> RunId:
    return RunId(f"01900000-0000-7000-8000-{next(_ids):012x}")


def claimed(task: str, payload: str = "null", **changes: Any) -> ClaimedRun:
    facts: dict[str, Any] = {
        "run_id": run_id(),
        "token": "token",
        "task": task,
        "queue": "main",
        "payload": payload,
        "attempt": 1,
        "failures": 0,
        "max_attempts": 3,
        "tenant": None,
        "concurrency_key": None,
        "due_at": NOW,
        "created_at": NOW,
        "claimed_at": NOW,
        **changes,
    }
    return ClaimedRun(**facts)


@dataclass
class FakeTransport:
    bound: Collection[str] = ("main",)
    ordered: Collection[str] = ()
    published: list[Wakeup] = field(default_factory=list)
    error: Exception | None = None

    def publish(self, wakeups: Sequence[Wakeup]) -> tuple[PublishResult, ...]:
        if self.error is not None:
            raise self.error
        self.published += wakeups
        return tuple(PublishResult(wakeup.run_id, published=True, hint=wakeup.hint) for wakeup in wakeups)

    def serves(self, queue: str) -> bool:
        return queue in self.bound

    def keeps_order(self, queue: str) -> bool:
        return queue in self.ordered

    def close(self) -> None:
        return None


@dataclass
class FakeTriggers:
    recorded: list[NewRun] = field(default_factory=list)
    marked: list[PublishResult] = field(default_factory=list)
    dispatched: list[Collection[str]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    wakeups: tuple[Wakeup, ...] = ()
    starved: tuple[str, ...] = ()
    outcome: TriggerOutcome = TriggerOutcome.CREATED
    dispatch_error: Exception | None = None

    def trigger_runs(self, runs: Sequence[NewRun], *, eager: bool) -> TriggerBatch:
        self.calls.append("eager" if eager else "deferred")
        return TriggerBatch(self._record(runs), self.wakeups, self.starved)

    def record_runs(self, connection: Any, runs: Sequence[NewRun]) -> TriggerBatch:
        self.calls.append("recorded")
        return TriggerBatch(self._record(runs))

    def dispatch(self, queues: Collection[str]) -> tuple[Wakeup, ...]:
        if self.dispatch_error is not None:
            raise self.dispatch_error
        self.dispatched.append(queues)
        return self.wakeups

    def mark_published(self, marks: Sequence[PublishMark]) -> None:
        self.calls.append("marked")
        self.marked += [mark.result for mark in marks]

    def _record(self, runs: Sequence[NewRun]) -> tuple[RecordedRun, ...]:
        self.recorded += runs
        return tuple(RecordedRun(run_id(), self.outcome, Status.QUEUED, NOW, None) for _ in runs)


@dataclass
class FakeDeliveries:
    """Claims answer from `claims`, in turn, or else `on_claim`; settlements are kept and answered by `on_settle`."""

    claims: list[ClaimBatch | Exception] = field(default_factory=list)
    oldest: list[ClaimBatch] = field(default_factory=list)
    looks: list[Look | Exception] = field(default_factory=list)
    settled: list[list[Settlement]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    asked: list[list[RunId]] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    states: Mapping[RunId, bool] | None = None
    polled: list[Collection[str]] = field(default_factory=list)
    continued: list[Collection[str]] = field(default_factory=list)
    on_claim: Callable[[Sequence[RunId]], ClaimBatch] = field(default=lambda asked: ClaimBatch())
    on_settle: Callable[[Sequence[Settlement]], SettleBatch] | None = None

    def claim_runs(self, run_ids: Sequence[RunId], *, lease_for: timedelta, worker: str, own_only: bool = False) -> ClaimBatch:
        return self._claim("claim own" if own_only else "claim", run_ids)

    def forward_runs(self, run_ids: Sequence[RunId]) -> ClaimBatch:
        return self._claim("forward", run_ids)

    def _claim(self, call: str, run_ids: Sequence[RunId]) -> ClaimBatch:
        self.calls.append(call)
        self.asked.append(list(run_ids))
        answer = self.claims.pop(0) if self.claims else self.on_claim(run_ids)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def claim_oldest(self, queues: Collection[str], *, limit: int, lease_for: timedelta, worker: str) -> ClaimBatch:
        self.calls.append("oldest")
        self.polled.append(queues)
        self.limits.append(limit)
        return self.oldest.pop(0) if self.oldest else ClaimBatch()

    def look(self, queues: Collection[str]) -> Look:
        answer = self.looks.pop(0) if self.looks else Look(is_dispatched=False)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def heartbeat(self, leases: Mapping[RunId, str], *, lease_for: timedelta) -> tuple[LeaseState, ...]:
        self.calls.append("heartbeat")
        return self._states(leases)

    def read_leases(self, leases: Mapping[RunId, str]) -> tuple[LeaseState, ...]:
        self.calls.append("read")
        return self._states(leases)

    def settle_runs(self, settlements: Sequence[Settlement]) -> SettleBatch:
        self.calls.append("settle")
        if self.on_settle is not None:
            answer = self.on_settle(settlements)
        else:
            answer = SettleBatch(tuple(SettledRun(one.run_id, ENDS.get(one.kind, Status.QUEUED)) for one in settlements), ())
        self.settled.append(list(settlements))
        return answer

    def settle_and_claim(
        self, settlements: Sequence[Settlement], queues: Collection[str], *, limit: int, lease_for: timedelta, worker: str
    ) -> tuple[SettleBatch, ClaimBatch]:
        settled = self.settle_runs(settlements)
        self.calls[-1] = "settle and claim"
        self.continued.append(queues)
        self.limits.append(limit)
        return settled, self.oldest.pop(0) if self.oldest else ClaimBatch()

    @property
    def outcomes(self) -> dict[RunId, Settlement]:
        return {one.run_id: one for group in self.settled for one in group}

    def _states(self, leases: Mapping[RunId, str]) -> tuple[LeaseState, ...]:
        states = dict.fromkeys(leases, False) if self.states is None else self.states
        return tuple(LeaseState(run, states[run]) for run in leases if run in states)


@dataclass
class FakeMaintenance:
    answers: dict[str, list[PhaseResult | Exception]] = field(default_factory=dict)
    leases: list[tuple[ExpiredLease, ...]] = field(default_factory=list)
    passed_over: list[tuple[RunId, ...]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    noted: list[tuple[str, ...]] = field(default_factory=list)

    def due_timers(self, *, look_ahead: timedelta, limit: int) -> PhaseResult:
        return self._next("due_timers")

    def fold_recorded(self, *, limit: int) -> PhaseResult:
        return self._next("fold_recorded")

    def expire_dispatches(self, *, limit: int) -> PhaseResult:
        return self._next("expire_dispatches")

    def expired_leases(self, *, limit: int, without: Collection[RunId] = ()) -> tuple[ExpiredLease, ...]:
        self.passed_over.append(tuple(without))
        return self.leases.pop(0) if self.leases else ()

    def expire_deadlines(self, *, limit: int) -> PhaseResult:
        return self._next("expire_deadlines")

    def dispatch_queues(self, *, limit: int) -> PhaseResult:
        return self._next("dispatch_queues")

    def claim_unpublished(self, *, limit: int) -> PhaseResult:
        return self._next("claim_unpublished")

    def ensure_partitions(self) -> PhaseResult:
        return self._next("ensure_partitions")

    def retain(self, *, keep_for: timedelta | None, limit: int) -> PhaseResult:
        return self._next("retain")

    def note_tick(self, failed: Sequence[str]) -> Gauges:
        self.noted.append(tuple(failed))
        self._next("note_tick")
        return Gauges(timedelta(seconds=90), timedelta(0))

    def _next(self, name: str) -> PhaseResult:
        self.calls.append(name)
        answers = self.answers.get(name, [])
        answer = answers.pop(0) if answers else PhaseResult(0, more=False)
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class FakeQueues:
    policies: dict[str, Queue] = field(default_factory=dict)
    wakeups: tuple[Wakeup, ...] = ()
    asked: list[Any] = field(default_factory=list)

    def read_policies(self) -> dict[str, Queue]:
        self.asked.append("policies")
        return self.policies

    def write_policies(self, queues: Sequence[Queue], *, actor: str | None) -> tuple[tuple[str, ...], tuple[Wakeup, ...]]:
        return tuple(queue.name for queue in queues), self.wakeups

    def stats(self, queues: Collection[str] | None = None) -> tuple[QueueStats, ...]:
        self.asked.append(queues)
        return ()

    def pause(self, queue: str, *, tenant: str | None, concurrency_key: str | None, actor: str | None) -> tuple[int, tuple[Wakeup, ...]]:
        self.asked.append((queue, tenant, concurrency_key))
        return 1, self.wakeups

    def resume(self, queue: str, *, tenant: str | None, concurrency_key: str | None, actor: str | None) -> tuple[Wakeup, ...]:
        return self.wakeups

    def set_weight(self, queue: str, tenant: str, weight: int) -> None:
        self.asked.append((queue, tenant, weight))


@dataclass
class FakeSchedules:
    """Nothing is in force but what `differences` says, and `due` is to be looked at once."""

    differences: Mapping[str, Change] = field(default_factory=dict)
    due: list[tuple[DueSchedule, ...]] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    refused: Collection[str] = ()
    """Schedules whose runs the database would not make."""
    passed: tuple[DueSchedule, ...] = ()

    def write_schedules(self, definitions: Sequence[ScheduleDefinition], *, actor: str | None) -> Written:
        return Written(self.differences, (), self.passed)

    def compare(self, definitions: Sequence[ScheduleDefinition]) -> Mapping[str, Change]:
        return self.differences

    def due_schedules(self, *, limit: int) -> tuple[DueSchedule, ...]:
        return self.due.pop(0) if self.due else ()

    def materialize(self, plans: Sequence[Plan]) -> Materialized:
        if any(plan.schedule_id in self.refused and plan.fires for plan in plans):
            raise ConfigurationError(["queue 'gone' is not in the database"], code="queue_not_migrated")
        self.plans += plans
        return Materialized(frozenset(plan.schedule_id for plan in plans), sum(len(plan.fires) for plan in plans))


@dataclass
class FakeStorage:
    triggers: FakeTriggers = field(default_factory=FakeTriggers)
    deliveries: FakeDeliveries = field(default_factory=FakeDeliveries)
    maintenance: FakeMaintenance = field(default_factory=FakeMaintenance)
    queues: FakeQueues = field(default_factory=FakeQueues)
    schedules: FakeSchedules = field(default_factory=FakeSchedules)
    runs: Any = None
    operations: Any = None

    def close(self) -> None:
        return None


@dataclass
class FakeTelemetry:
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    flushes: int = 0

    def flush(self) -> None:
        self.flushes += 1

    def emit(self, event: str, /, **facts: Any) -> None:
        self.events.append((event, facts))

    def named(self, event: str) -> list[dict[str, Any]]:
        return [facts for name, facts in self.events if name == event]


def message(run: RunId, queue: str = "main") -> DeliveryMessage:
    return DeliveryMessage(run, queue)
