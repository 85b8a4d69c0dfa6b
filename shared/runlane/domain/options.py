"""What a task may be told besides its code: values, or functions of the payload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypeVar

from runlane.domain.durations import Duration, gather_duration
from runlane.domain.errors import ContractError
from runlane.domain.ids import validate_key
from runlane.domain.queue import Queue
from runlane.domain.retry import Retry
from runlane.domain.schedule import Schedule
from runlane.domain.shown import shown

T = TypeVar("T")

Key = str | Callable[[Any], str | None] | None
"""A key, or a function of the payload that returns one (None: no key)."""
Priority = int | Callable[[Any], int]
"""Seconds, or a function of the payload that returns them."""

SingletonMode = Literal["return", "cancel", "latest"]
"""What a trigger does about the active run of its singleton key: return it, cancel it, or succeed it when it has ended."""

LARGEST_PRIORITY = 600
ACTIVE = "active"
"""The idempotency TTL that frees a key at any end of its owner."""


class Routing(NamedTuple):
    """A task's options for one payload, validated."""

    tenant: str | None
    concurrency_key: str | None
    singleton_key: str | None
    idempotency_key: str | None
    priority: int


class TaskOptions(NamedTuple):
    """A task's policy. `queue` and `retry` None: the runtime's defaults. `idempotency_ttl` None: only while the owner is active."""

    queue: Queue | None = None
    retry: Retry | None = None
    schedules: tuple[Schedule, ...] = ()
    tenant: Key = None
    concurrency_key: Key = None
    singleton_key: Key = None
    idempotency_key: Key = None
    idempotency_ttl: timedelta | None = timedelta(days=30)
    priority: Priority = 0
    max_attempt_duration: timedelta | None = None
    start_timeout: timedelta | None = None
    finish_timeout: timedelta | None = None

    @property
    def routes_by_payload(self) -> bool:
        """Whether `route` may answer something else for another payload."""
        return any(map(callable, (self.tenant, self.concurrency_key, self.singleton_key, self.idempotency_key, self.priority)))

    def route(self, payload: Any) -> Routing:
        """Evaluate keys and priority for a payload; `ContractError` names the option that gave something wrong."""
        return Routing(
            tenant=_key(self.tenant, payload, "tenant"),
            concurrency_key=_key(self.concurrency_key, payload, "concurrency_key"),
            singleton_key=_key(self.singleton_key, payload, "singleton_key"),
            idempotency_key=_key(self.idempotency_key, payload, "idempotency_key"),
            priority=validate_priority(self.priority(payload) if callable(self.priority) else self.priority),
        )


def validate_priority(value: int) -> int:
    """A priority, unchanged: -600 to 600 whole seconds; `ContractError` `priority_invalid`."""
    if fault := _priority_fault(value):
        raise ContractError("priority_invalid", fault, meta={"field": "priority"})
    return value


def read_ttl(value: Duration, faults: list[str]) -> timedelta | None:
    """An idempotency TTL; None for "active"."""
    return None if value == ACTIVE else gather_duration(value, "idempotency_ttl", faults, positive=True)


def option_faults(options: TaskOptions) -> Iterator[str]:
    """What is wrong with options that are known before any payload."""
    yield from _kind_faults("queue", options.queue, Queue)
    yield from _kind_faults("retry", options.retry, Retry)
    for schedule in options.schedules:
        yield from _kind_faults("schedules", schedule, Schedule)
    for what in ("tenant", "concurrency_key", "singleton_key", "idempotency_key"):
        yield from _key_faults(what, getattr(options, what))
    if not callable(options.priority) and (fault := _priority_fault(options.priority)):
        yield fault
    attempt, finish = options.max_attempt_duration, options.finish_timeout
    if attempt and finish and attempt > finish:
        yield f"max_attempt_duration {attempt} is longer than finish_timeout {finish}; an attempt could never use it"


def _key(option: Key, payload: Any, what: str) -> str | None:
    value = option(payload) if callable(option) else option
    return None if value is None else validate_key(value, what)


def _kind_faults(what: str, value: object, kind: type) -> Iterator[str]:
    if value is not None and not isinstance(value, kind):
        yield f"{what}: {shown(value)} is not a {kind.__name__}"


def _key_faults(what: str, option: Key) -> Iterator[str]:
    if option is None or callable(option):
        return
    try:
        validate_key(option, what)
    except ContractError as error:
        yield f"{error.message} (or a function of the payload)"


def _priority_fault(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"priority: {shown(value)} is not a whole number of seconds"
    if abs(value) > LARGEST_PRIORITY:
        return f"priority: {shown(value)} is out of range; give -{LARGEST_PRIORITY} to {LARGEST_PRIORITY} seconds"
    return None
