"""What operators give, checked by name before storage sees it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from runlane.domain.errors import ContractError, NotFoundError
from runlane.domain.excerpt import head
from runlane.domain.ids import validate_key, validate_name
from runlane.domain.moments import to_utc
from runlane.domain.queue import Queue
from runlane.domain.registry import QueueRegistry
from runlane.domain.run import Source, Status
from runlane.domain.shown import shown
from runlane.domain.task import Task
from runlane.services.payload import AnyTask

TaskName = AnyTask | str
REASON_BYTES = 1024


def queue_name(queues: QueueRegistry, queue: Queue | str) -> str:
    """The name of a registered queue; `NotFoundError` for an unknown name, `ConfigurationError` for another policy."""
    return (queues.named(queue) if isinstance(queue, str) else queues.require(queue)).name


def task_name(task: TaskName) -> str:
    return task.id if isinstance(task, Task) else validate_name(task, "task")


def checked_statuses(given: Status | str | Iterable[Status | str] | None) -> frozenset[Status] | None:
    if given is None:
        return None
    listed = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    try:
        return frozenset(map(Status, listed))
    except Exception:  # A lookup shows what it does not find, which may be anything.
        raise invalid("status", f"{shown(given)} is none; there are {', '.join(Status)}") from None


def checked_source(given: Source | str | None) -> Source | None:
    try:
        return None if given is None else Source(given)
    except Exception:
        raise invalid("source", f"{shown(given)} is none; there are {', '.join(Source)}") from None


def checked_reason(given: str | None) -> str | None:
    """Of a longer one the first 1 KiB."""
    return None if given is None else head(given if isinstance(given, str) else shown(given), REASON_BYTES)


def checked_key(value: str | None, what: str) -> str | None:
    return None if value is None else validate_key(value, what)


def checked_time(value: datetime | None, what: str) -> datetime | None:
    return None if value is None else to_utc(value, what)


def invalid(field: str, fault: str) -> ContractError:
    return ContractError("option_invalid", f"{field}: {fault}", meta={"field": field})


def run_not_found(run_id: str) -> NotFoundError:
    fault = f"there is no run {run_id}; one that has ended is kept for the retention only"
    return NotFoundError("run_not_found", fault, meta={"run_id": run_id})
