"""Runs by id or by filter."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from runlane.domain.durations import Duration, parse_duration
from runlane.domain.errors import ConflictError
from runlane.domain.ids import RunId, parse_run_id, validate_key
from runlane.domain.moments import to_utc
from runlane.domain.queue import Queue
from runlane.domain.records import AttemptRecord, EventRecord, Page, RunRecord
from runlane.domain.registry import QueueRegistry
from runlane.domain.run import Source, Status
from runlane.domain.shown import shown
from runlane.ports.clock import Clock
from runlane.ports.operations import OperationStore
from runlane.ports.stores import RunStore
from runlane.services.operate.arguments import TaskName, checked_key, checked_reason, invalid, run_not_found, task_name
from runlane.services.operate.children import Children, wish_of
from runlane.services.operate.filters import run_filter
from runlane.services.operate.many_runs import ManyRuns
from runlane.services.operate.patience import patiently
from runlane.services.publish import Publisher
from runlane.services.trigger import TriggerResult

LARGEST_PAGE = 200
FIRST_LOOK, SLOWEST_LOOK = 0.05, 1.0


class Runs(ManyRuns):
    """Runs by id or by filter. Ids are text; a malformed one is a `ContractError`, an unknown one a `NotFoundError` `run_not_found`."""

    def __init__(
        self,
        store: RunStore,
        operations: OperationStore,
        children: Children,
        publisher: Publisher,
        queues: QueueRegistry,
        clock: Clock,
    ) -> None:
        super().__init__(store, operations, children, publisher, queues, clock)
        self._store = store
        self._clock = clock

    def get(self, run_id: str) -> RunRecord:
        record = self._store.get_run(parse_run_id(run_id))
        if record is None:
            raise run_not_found(run_id)
        return record

    def list(
        self,
        *,
        status: Status | str | Iterable[Status | str] | None = None,
        task: TaskName | None = None,
        queue: Queue | str | None = None,
        tenant: str | None = None,
        concurrency_key: str | None = None,
        source: Source | str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Newest first, `limit` (1 to 200) at a time; give `next_cursor` back with the same filter for the next page."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
            raise invalid("limit", f"{shown(limit)} is no whole number from 1 to {LARGEST_PAGE}")
        chosen = run_filter(
            self._queues,
            status=status,
            task=task,
            queue=queue,
            tenant=tenant,
            concurrency_key=concurrency_key,
            source=source,
            created_after=created_after,
            created_before=created_before,
        )
        return self._store.list_runs(chosen, limit=limit, cursor=cursor)

    def find_active(self, task: TaskName, *, singleton_key: str | None = None, idempotency_key: str | None = None) -> RunRecord | None:
        """The active run that owns the key; give one of the two. To look, not to decide: it may end while you read this."""
        if (singleton_key is None) == (idempotency_key is None):
            raise invalid("singleton_key", "give singleton_key or idempotency_key, one of them")
        return self._store.find_owner(
            task_name(task),
            singleton_key=checked_key(singleton_key, "singleton_key"),
            idempotency_key=checked_key(idempotency_key, "idempotency_key"),
        )

    def find_current(self, task: TaskName, *, idempotency_key: str) -> RunRecord | None:
        """The run that a trigger with this key would return: active, or ended and still keeping the key."""
        return self._store.find_owner(task_name(task), idempotency_key=validate_key(idempotency_key, "idempotency_key"), retained=True)

    def events(self, run_id: str) -> tuple[EventRecord, ...]:
        """The history, oldest first."""
        return self._found(run_id, self._store.list_events(parse_run_id(run_id)))

    def attempts(self, run_id: str) -> tuple[AttemptRecord, ...]:
        """Oldest first; empty for a run that was never started."""
        known = parse_run_id(run_id)
        return self._store.list_attempts(known) or self._none_if_known(known)

    def cancel(self, run_id: str, *, actor: str | None = None, reason: str | None = None) -> Status:
        """Cancel: a waiting run at once, a running one is asked to stop. The status after it; a terminal one had already ended.

        Of a longer `reason` the first 1 KiB is kept.
        """
        known, told, why = parse_run_id(run_id), checked_key(actor, "actor"), checked_reason(reason)
        status, wakeups = patiently(self._clock, lambda: self._store.cancel_run(known, actor=told, reason=why))
        if status is None:
            raise run_not_found(run_id)
        self._publisher.publish(wakeups)
        return status

    def retry(self, run_id: str, *, actor: str | None = None, reason: str | None = None) -> TriggerResult:
        """Make a failed run again, once. The new run names it as its source, and has its queue, tenant, keys, priority and meta.

        The outcome is `singleton_active`, with the run that is active, if there is one. Raises `PayloadError` if the payload does not
        fit the task any more, `ConflictError` `run_not_failed` or `already_retried` (`meta["child_run_id"]`).
        """
        return self._children.make(parse_run_id(run_id), wish_of(Source.MANUAL_RETRY, actor, reason))

    def rerun(self, run_id: str, *, actor: str | None = None, reason: str | None = None) -> TriggerResult:
        """As `retry`, of any run that has ended, as often as it is asked for; `ConflictError` `run_not_ended`."""
        return self._children.make(parse_run_id(run_id), wish_of(Source.RERUN, actor, reason))

    def reschedule(self, run_id: str, run_at: datetime, *, actor: str | None = None) -> Status:
        """Move a waiting run to another due time (aware); the status after it. A time that is past means now.

        One that is on its way gives its slot to the next. Raises `ConflictError` `run_not_waiting` if it runs or has ended.
        """
        known, at, told = parse_run_id(run_id), to_utc(run_at, "run_at"), checked_key(actor, "actor")
        answer = patiently(self._clock, lambda: self._operations.reschedule_run(known, at, actor=told))
        if answer is None:
            raise run_not_found(run_id)
        if answer.is_refused:
            raise ConflictError(
                "run_not_waiting",
                f"run {run_id} is {answer.status}; only a run that waits can be moved",
                retryable=False,
                meta={"run_id": run_id, "status": answer.status.value},
            )
        self._publisher.publish(answer.wakeups)
        return answer.status

    def wait(self, run_id: str, timeout: Duration = "30s") -> RunRecord:
        """The run once it is terminal; `ConflictError` `wait_timeout` if it is not within `timeout`."""
        ends_at = self._clock.monotonic() + parse_duration(timeout, "timeout").total_seconds()
        pause = FIRST_LOOK
        while not (record := self.get(run_id)).status.is_terminal:
            left = ends_at - self._clock.monotonic()
            if left <= 0:
                raise ConflictError("wait_timeout", f"run {run_id} is still {record.status}; wait longer, or look at its events")
            self._clock.sleep(min(pause, left))
            pause = min(pause * 1.5, SLOWEST_LOOK)
        return record

    def _found(self, run_id: str, events: tuple[EventRecord, ...]) -> tuple[EventRecord, ...]:
        if not events:
            raise run_not_found(run_id)
        return events

    def _none_if_known(self, run_id: RunId) -> tuple[AttemptRecord, ...]:
        self.get(run_id)
        return ()
