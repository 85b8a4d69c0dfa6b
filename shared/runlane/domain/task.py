"""Tasks: a handler, the payload it takes, and its policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Concatenate, Generic, Never, TypeVar

from runlane.domain.durations import Duration, gather_duration
from runlane.domain.errors import ConfigurationError, ContractError
from runlane.domain.ids import validate_name
from runlane.domain.options import Key, Priority, TaskOptions, option_faults, read_ttl
from runlane.domain.queue import Queue
from runlane.domain.retry import Retry
from runlane.domain.schedule import Schedule
from runlane.domain.shown import shown
from runlane.domain.signature import read_signature

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Task(Generic[P, R]):
    """A registered handler; calling the task calls the handler, so that it stays an ordinary function in tests."""

    id: str
    handler: Callable[Concatenate[P, ...], R]
    payload_type: Any
    is_async: bool
    takes_context: bool
    options: TaskOptions

    def __call__(self, payload: P, *arguments: Any) -> R:
        return self.handler(payload, *arguments)


def task(
    id: str,
    *,
    queue: Queue | None = None,
    retry: Retry | None = None,
    schedules: Sequence[Schedule] = (),
    tenant: Key = None,
    concurrency_key: Key = None,
    singleton_key: Key = None,
    idempotency_key: Key = None,
    idempotency_ttl: Duration = "30d",
    priority: Priority = 0,
    max_attempt_duration: Duration | None = None,
    start_timeout: Duration | None = None,
    finish_timeout: Duration | None = None,
    **unknown: Never,
) -> Callable[[Callable[Concatenate[P, ...], R]], Task[P, R]]:
    """Make a task of a handler `(payload)` or `(payload, ctx)`; the payload's type is its annotation.

    Keys and priority are values or functions of the payload. `schedules`: when it runs by itself. Everything that is
    wrong with the options or the handler is raised as one `ConfigurationError` when the handler is decorated.
    """
    faults = [*_id_faults(id), *_unknown_faults(unknown)]
    options = TaskOptions(
        queue=queue,
        retry=retry,
        schedules=_listed(schedules, faults),
        tenant=tenant,
        concurrency_key=concurrency_key,
        singleton_key=singleton_key,
        idempotency_key=idempotency_key,
        idempotency_ttl=read_ttl(idempotency_ttl, faults),
        priority=priority,
        max_attempt_duration=_length(max_attempt_duration, "max_attempt_duration", faults),
        start_timeout=_length(start_timeout, "start_timeout", faults),
        finish_timeout=_length(finish_timeout, "finish_timeout", faults),
    )
    faults += option_faults(options)

    def decorate(handler: Callable[Concatenate[P, ...], R]) -> Task[P, R]:
        found = list(faults)
        signature = read_signature(handler, found)
        ConfigurationError.raise_if(f"task {shown(id)}: {fault}" for fault in found)
        return Task(id, handler, signature.payload_type, signature.is_async, signature.takes_context, options)

    return decorate


def _length(value: Duration | None, what: str, faults: list[str]) -> timedelta | None:
    return None if value is None else gather_duration(value, what, faults, positive=True)


def _listed(schedules: Sequence[Schedule], faults: list[str]) -> tuple[Schedule, ...]:
    if not isinstance(schedules, list | tuple):
        faults.append(f"schedules: {shown(schedules)} is no list; give [Schedule(…)]")
        return ()
    faults += [f"schedules: {shown(one)} is no schedule; give Schedule(…)" for one in schedules if not isinstance(one, Schedule)]
    return tuple(one for one in schedules if isinstance(one, Schedule))


def _id_faults(id: str) -> list[str]:
    try:
        validate_name(id, "id")
    except ContractError as error:
        return [error.message]
    return []


def _unknown_faults(unknown: Iterable[str]) -> list[str]:
    return [f"{name}: there is no such option" for name in unknown]
