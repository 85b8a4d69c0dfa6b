"""Looking at runs and queues, and steering them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from runlane.domain.durations import Duration, parse_duration
from runlane.domain.errors import ConflictError, ContractError, NotFoundError
from runlane.domain.excerpt import head
from runlane.domain.ids import RunId, parse_run_id, validate_key, validate_name
from runlane.domain.queue import Queue, QueueStats
from runlane.domain.registry import QueueRegistry
from runlane.domain.run import AttemptRecord, EventRecord, RunRecord, Status
from runlane.domain.task import Task
from runlane.ports.clock import Clock
from runlane.ports.stores import Page, QueueStore, RunFilter, RunStore
from runlane.services.options import to_utc
from runlane.services.payload import AnyTask
from runlane.services.publish import Publisher

LARGEST_PAGE = 200
LARGEST_WEIGHT = 1_000_000
REASON_BYTES = 1024
FIRST_LOOK, SLOWEST_LOOK = 0.05, 1.0

TaskName = AnyTask | str


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
            raise _run_not_found(run_id)
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
            raise _invalid("limit", f"{limit!r} is no whole number from 1 to {LARGEST_PAGE}")
        run_filter = RunFilter(
            statuses=_statuses(status),
            task=None if task is None else _task_name(task),
            queue=None if queue is None else queue_name(self._queues, queue),
            tenant=_key(tenant, "tenant"),
            concurrency_key=_key(concurrency_key, "concurrency_key"),
            created_after=_aware(created_after, "created_after"),
            created_before=_aware(created_before, "created_before"),
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
        status, wakeups = self._store.cancel_run(parse_run_id(run_id), actor=_key(actor, "actor"), reason=told)
        if status is None:
            raise _run_not_found(run_id)
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
            raise _run_not_found(run_id)
        return events

    def _none_if_known(self, run_id: RunId) -> tuple[AttemptRecord, ...]:
        self.get(run_id)
        return ()


class Queues:
    """Registered queues, by name or as the `Queue` itself."""

    def __init__(self, store: QueueStore, publisher: Publisher, queues: QueueRegistry) -> None:
        self._store = store
        self._publisher = publisher
        self._queues = queues

    def stats(self, *queues: Queue | str) -> tuple[QueueStats, ...]:
        """Counters of these queues, of every registered one by default."""
        return self._store.stats([queue_name(self._queues, queue) for queue in queues or tuple(self._queues)])

    def pause(self, queue: Queue | str, *, tenant: str | None = None, concurrency_key: str | None = None, actor: str | None = None) -> int:
        """Start nothing more of a queue, a tenant or a key; running runs go on. The number of dispatches given back."""
        name = queue_name(self._queues, queue)
        given_back, wakeups = self._store.pause(
            name, tenant=_key(tenant, "tenant"), concurrency_key=_key(concurrency_key, "concurrency_key"), actor=_key(actor, "actor")
        )
        self._publisher.publish(wakeups)
        return given_back

    def resume(self, queue: Queue | str, *, tenant: str | None = None, concurrency_key: str | None = None, actor: str | None = None) -> int:
        """Undo the same pause and send on their way what has capacity. The number of wakeups sent."""
        name = queue_name(self._queues, queue)
        wakeups = self._store.resume(
            name, tenant=_key(tenant, "tenant"), concurrency_key=_key(concurrency_key, "concurrency_key"), actor=_key(actor, "actor")
        )
        return self._publisher.publish(wakeups)

    def put_in_force(self, *, actor: str | None = None) -> tuple[str, ...]:
        """Store the registered policies as those that dispatch obeys, and give out what raised limits free; the names that changed."""
        changed, wakeups = self._store.write_policies(tuple(self._queues), actor=_key(actor, "actor"))
        self._publisher.publish(wakeups)
        return changed

    def set_weight(self, queue: Queue | str, tenant: str, weight: int) -> None:
        """A tenant's share beside the others of the queue, 1 by default: a whole number of at least 1."""
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= LARGEST_WEIGHT:
            raise _invalid("weight", f"{weight!r} is no whole number from 1 to {LARGEST_WEIGHT}")
        self._store.set_weight(queue_name(self._queues, queue), validate_key(tenant, "tenant"), weight)


class IdempotencyKeys:
    def __init__(self, store: RunStore) -> None:
        self._store = store

    def reset(self, task: TaskName, key: str) -> bool:
        """Free a key, so that the next trigger with it makes a new run; False if it had no owner."""
        return self._store.reset_idempotency_key(_task_name(task), validate_key(key, "key"))


def queue_name(queues: QueueRegistry, queue: Queue | str) -> str:
    """The name of a registered queue; `NotFoundError` for an unknown name, `ConfigurationError` for another policy."""
    return (queues.named(queue) if isinstance(queue, str) else queues.require(queue)).name


def _task_name(task: TaskName) -> str:
    return task.id if isinstance(task, Task) else validate_name(task, "task")


def _statuses(given: Status | str | Iterable[Status | str] | None) -> frozenset[Status] | None:
    if given is None:
        return None
    listed = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    try:
        return frozenset(map(Status, listed))
    except ValueError as error:
        raise _invalid("status", f"{error}; there are {', '.join(Status)}") from None


def _key(value: str | None, what: str) -> str | None:
    return None if value is None else validate_key(value, what)


def _aware(value: datetime | None, what: str) -> datetime | None:
    return None if value is None else to_utc(value, what)


def _invalid(field: str, fault: str) -> ContractError:
    return ContractError("option_invalid", f"{field}: {fault}", meta={"field": field})


def _run_not_found(run_id: str) -> NotFoundError:
    return NotFoundError("run_not_found", f"there is no run {run_id}", meta={"run_id": run_id})
