"""Runs by id or by filter."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from runlane.domain.durations import Duration, parse_duration
from runlane.domain.errors import ConflictError
from runlane.domain.excerpt import head
from runlane.domain.ids import RunId, parse_run_id
from runlane.domain.queue import Queue
from runlane.domain.registry import QueueRegistry
from runlane.domain.run import AttemptRecord, EventRecord, RunRecord, Status
from runlane.ports.clock import Clock
from runlane.ports.stores import Page, RunFilter, RunStore
from runlane.services.operate.arguments import (
    TaskName,
    checked_key,
    checked_statuses,
    checked_time,
    invalid,
    queue_name,
    run_not_found,
    task_name,
)
from runlane.services.publish import Publisher

LARGEST_PAGE = 200
REASON_BYTES = 1024
FIRST_LOOK, SLOWEST_LOOK = 0.05, 1.0


class Runs:
    """Runs by id or by filter. Ids are text; a malformed one is a `ContractError`, an unknown one a `NotFoundError` `run_not_found`."""

    def __init__(self, store: RunStore, publisher: Publisher, queues: QueueRegistry, clock: Clock) -> None:
        self._store = store
        self._publisher = publisher
        self._queues = queues
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
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Newest first, `limit` (1 to 200) at a time; give `next_cursor` back with the same filter for the next page."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
            raise invalid("limit", f"{limit!r} is no whole number from 1 to {LARGEST_PAGE}")
        run_filter = RunFilter(
            statuses=checked_statuses(status),
            task=None if task is None else task_name(task),
            queue=None if queue is None else queue_name(self._queues, queue),
            tenant=checked_key(tenant, "tenant"),
            concurrency_key=checked_key(concurrency_key, "concurrency_key"),
            created_after=checked_time(created_after, "created_after"),
            created_before=checked_time(created_before, "created_before"),
        )
        return self._store.list_runs(run_filter, limit=limit, cursor=cursor)

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
        told = None if reason is None else head(str(reason), REASON_BYTES)
        status, wakeups = self._store.cancel_run(parse_run_id(run_id), actor=checked_key(actor, "actor"), reason=told)
        if status is None:
            raise run_not_found(run_id)
        self._publisher.publish(wakeups)
        return status

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
