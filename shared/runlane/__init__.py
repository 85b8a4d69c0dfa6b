"""Runlane: durable, fair background runs. Postgres holds the truth, SQS only wakes the workers.

The public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runlane.domain.errors import (
        ConfigurationError,
        ConflictError,
        ContractError,
        InvariantError,
        NotFoundError,
        PayloadError,
        RunlaneError,
        UnavailableError,
    )
    from runlane.domain.event import EventType
    from runlane.domain.queue import Queue, Throttle
    from runlane.domain.records import Fire, PausedSchedule, QueueStats, ScheduleRecord, ScheduleState
    from runlane.domain.retry import Exponential, Fixed, NonRetryable, Retry, RetryAfter
    from runlane.domain.run import Source, Status, TriggerOutcome
    from runlane.domain.schedule import Schedule
    from runlane.domain.task import Task, task
    from runlane.runtime import Runlane
    from runlane.services.context import Cancelled, Context, LeaseLost, OutOfTime, Release, Suspension
    from runlane.services.delivery import Record
    from runlane.services.lane import Lane
    from runlane.services.operate.bulk import BulkReport
    from runlane.services.run_now import RunNowResult
    from runlane.services.trigger import Item, TriggerResult

_HOMES = {
    "runlane.domain.errors": (
        "ConfigurationError ConflictError ContractError InvariantError NotFoundError PayloadError RunlaneError UnavailableError"
    ),
    "runlane.domain.event": "EventType",
    "runlane.domain.queue": "Queue Throttle",
    "runlane.domain.records": "Fire PausedSchedule QueueStats ScheduleRecord ScheduleState",
    "runlane.domain.retry": "Exponential Fixed NonRetryable Retry RetryAfter",
    "runlane.domain.run": "Source Status TriggerOutcome",
    "runlane.domain.schedule": "Schedule",
    "runlane.domain.task": "Task task",
    "runlane.runtime": "Runlane",
    "runlane.services.context": "Cancelled Context LeaseLost OutOfTime Release Suspension",
    "runlane.services.delivery": "Record",
    "runlane.services.lane": "Lane",
    "runlane.services.operate.bulk": "BulkReport",
    "runlane.services.run_now": "RunNowResult",
    "runlane.services.trigger": "Item TriggerResult",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "BulkReport",
    "Cancelled",
    "ConfigurationError",
    "ConflictError",
    "Context",
    "ContractError",
    "EventType",
    "Exponential",
    "Fire",
    "Fixed",
    "InvariantError",
    "Item",
    "Lane",
    "LeaseLost",
    "NonRetryable",
    "NotFoundError",
    "OutOfTime",
    "PausedSchedule",
    "PayloadError",
    "Queue",
    "QueueStats",
    "Record",
    "Release",
    "Retry",
    "RetryAfter",
    "RunNowResult",
    "Runlane",
    "RunlaneError",
    "Schedule",
    "ScheduleRecord",
    "ScheduleState",
    "Source",
    "Status",
    "Suspension",
    "Task",
    "Throttle",
    "TriggerOutcome",
    "TriggerResult",
    "UnavailableError",
    "task",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
