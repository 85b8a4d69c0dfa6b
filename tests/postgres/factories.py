"""Runs, settlements and a worker's moves; rows are made old here, the clock is never faked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from threading import Barrier
from typing import Any, TypeVar

import psycopg

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.ids import RunId
from runlane.domain.outcome import Failure, OutcomeKind, Settlement
from runlane.domain.queue import Queue
from runlane.domain.run import TERMINAL, Source, Status
from runlane.ports.operations import ChildBatch, PruneFilter, PruneStep, RescheduleAnswer
from runlane.ports.stores import ClaimBatch, ClaimedRun, NewRun, SettleBatch, TriggerBatch, Wakeup
from tests.waiting import PATIENCE, until

T = TypeVar("T")
LEASE = timedelta(seconds=60)
FAILURE = Failure("handler_error", "ValueError", "no")
PAST = "clock_timestamp() - interval '1 hour'"
STALE = "00000000-0000-0000-0000-000000000000"


def new_run(queue: str, **options: Any) -> NewRun:
    return NewRun(options.pop("task", "noop"), queue, options.pop("payload", "{}"), **options)


def settlement(claim: ClaimedRun, kind: OutcomeKind = OutcomeKind.SUCCEEDED, **fields: Any) -> Settlement:
    if kind is OutcomeKind.SUCCEEDED:
        fields.setdefault("result", "null")
    if kind in (OutcomeKind.FAILED, OutcomeKind.RETRY, OutcomeKind.LEASE_EXPIRED):
        fields.setdefault("failure", FAILURE)
    return Settlement(claim.run_id, claim.token, kind, **fields)


def ending(claim: ClaimedRun, kind: OutcomeKind) -> Settlement:
    """An end as a worker chooses it, due at once if it is none: who has no attempt left does not try again."""
    if kind is OutcomeKind.RETRY and claim.failures + 1 >= claim.max_attempts:
        kind = OutcomeKind.FAILED
    return settlement(claim, kind, delay=None if kind in (OutcomeKind.SUCCEEDED, OutcomeKind.FAILED) else timedelta(0))


def children(*run_ids: RunId, only_failed: bool = False, **options: Any) -> list[NewRun]:
    source = Source.MANUAL_RETRY if only_failed else Source.RERUN
    return [new_run(**{"queue": "work", **options}, source=source, source_run_id=run_id) for run_id in run_ids]


def ids(found: Iterable[Wakeup | ClaimedRun]) -> list[RunId]:
    return [item.run_id for item in found]


def at_once(*moves: Callable[[], T]) -> list[T]:
    """All moves from a common start, each on a thread of its own; the first error is raised."""
    barrier = Barrier(len(moves))

    def start(move: Callable[[], T]) -> T:
        barrier.wait(timeout=PATIENCE)
        return move()

    with ThreadPoolExecutor(len(moves)) as pool:
        return [future.result() for future in [pool.submit(start, move) for move in moves]]


@dataclass(frozen=True)
class Lane:
    """A storage seen from a test: short names for what tests do all day."""

    storage: PostgresStorage
    connection: psycopg.Connection

    def queues(self, *queues: Queue) -> tuple[Wakeup, ...]:
        return self.storage.queues.write_policies(queues, actor="test")[1]

    def trigger(self, *runs: NewRun, eager: bool = True) -> TriggerBatch:
        return self.storage.triggers.trigger_runs(runs, eager=eager)

    def trigger_one(self, queue: str, **options: Any) -> RunId:
        return self.trigger(new_run(queue, **options)).runs[0].run_id

    def claim(self, *run_ids: RunId, lease_for: timedelta = LEASE, worker: str = "w") -> ClaimBatch:
        return self.storage.deliveries.claim_runs(run_ids, lease_for=lease_for, worker=worker)

    def claim_one(self, run_id: RunId) -> ClaimedRun:
        (claim,) = self.claim(run_id).claims
        return claim

    def settle(self, *settlements: Settlement) -> SettleBatch:
        return self.storage.deliveries.settle_runs(settlements)

    def succeed(self, *claims: ClaimedRun) -> SettleBatch:
        return self.settle(*map(settlement, claims))

    def status(self, run_id: RunId) -> Status:
        record = self.storage.runs.get_run(run_id)
        assert record is not None
        return record.status

    def cancel(self, run_id: RunId) -> tuple[Status | None, tuple[Wakeup, ...]]:
        return self.storage.runs.cancel_run(run_id, actor="ann", reason="asked")

    def reschedule(self, run_id: RunId, after: timedelta) -> RescheduleAnswer | None:
        """To so long after now, by the database's clock; a negative time is past."""
        return self.storage.operations.reschedule_run(run_id, self.value("SELECT clock_timestamp()") + after, actor="ann")

    def again(self, *run_ids: RunId, only_failed: bool = False, **options: Any) -> ChildBatch:
        """Retry failed runs, or rerun ended ones."""
        return self.storage.operations.rerun_runs(children(*run_ids, only_failed=only_failed, **options), only_failed=only_failed)

    def ended(self, queue: str, kind: OutcomeKind = OutcomeKind.SUCCEEDED, **options: Any) -> RunId:
        """A run that has ended like this."""
        run_id = self.trigger_one(queue, **options)
        self.settle(settlement(self.claim_one(run_id), kind))
        return run_id

    def events(self, run_id: RunId) -> list[str]:
        return [event.type.value for event in self.storage.runs.list_events(run_id)]

    def drain(self, wakeups: Sequence[Wakeup], size: int = 10) -> list[RunId]:
        """Claim and settle until no wakeup is left; the runs in the order in which they ended."""
        left, done = list(wakeups), list[RunId]()
        while left:
            batch, left = left[:size], left[size:]
            claimed = self.claim(*ids(batch))
            done += ids(claimed.claims)
            left += [*claimed.wakeups, *self.succeed(*claimed.claims).wakeups]
        return done

    def prune(self, *statuses: Status, after: RunId | None = None, limit: int = 100, dry_run: bool = False, **chosen: Any) -> PruneStep:
        """Of runs that ended any time ago, unless `older_than` is given."""
        asked = PruneFilter(chosen.pop("older_than", timedelta(0)), frozenset(statuses) or TERMINAL, **chosen)
        return self.storage.operations.prune_runs(asked, after=after, limit=limit, dry_run=dry_run)

    def lock_waiters(self) -> int:
        return int(self.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"))

    def await_waiters(self, count: int) -> None:
        """Until so many connections wait for a lock; fails instead of hanging."""
        until(lambda: self.lock_waiters() >= count)

    # Rows made old.

    def age_timer(self, run_id: RunId) -> None:
        self._write(f"UPDATE runlane.timer SET due_at = {PAST} WHERE run_id = %s", run_id)

    def age_dispatch(self, *run_ids: RunId) -> None:
        self._write(f"UPDATE runlane.dispatch SET expires_at = {PAST} WHERE run_id = ANY (%s::uuid[])", list(run_ids))

    def age_lease(self, *run_ids: RunId) -> None:
        self._write(f"UPDATE runlane.lease SET expires_at = {PAST} WHERE run_id = ANY (%s::uuid[])", list(run_ids))

    def age_publication(self, *run_ids: RunId) -> None:
        self._write(f"UPDATE runlane.dispatch SET publish_claimed_at = {PAST} WHERE run_id = ANY (%s::uuid[])", list(run_ids))

    def age_deadlines(self) -> None:
        self._write(f"UPDATE runlane.deadline SET at = {PAST}")

    def value(self, query: str, *parameters: Any) -> Any:
        row = self.connection.execute(query.encode(), parameters).fetchone()
        return row[0] if row else None

    def _write(self, statement: str, *parameters: Any) -> None:
        self.connection.execute(statement.encode(), parameters)
