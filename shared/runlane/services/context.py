"""What a handler is given besides its payload."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from runlane.domain.durations import Duration, parse_duration
from runlane.domain.ids import RunId

if TYPE_CHECKING:
    from runlane.services.attempt import Attempt

_logger = logging.getLogger("runlane.run")


class Suspension(BaseException):
    """Ends an attempt from within; a `BaseException`, so that a handler's `except Exception` does not swallow it."""


class Cancelled(Suspension):
    """The run was asked to stop."""


class OutOfTime(Suspension):
    """The attempt's deadline has passed."""


class LeaseLost(Suspension):
    """Another worker may own the run by now; whatever this attempt returns will be refused."""


@dataclass(frozen=True, slots=True, init=False)
class Release:
    """Returned by a handler that has to wait; it does not count as a failure and holds no slot."""

    delay: timedelta
    reason: str | None

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        object.__setattr__(self, "delay", parse_duration(delay, "release delay"))
        object.__setattr__(self, "reason", reason)


class Context:
    """One attempt as its handler sees it. Safe to use from other threads of the handler."""

    __slots__ = ("_attempt", "_payload")

    def __init__(self, attempt: Attempt, payload: Any) -> None:
        self._attempt = attempt
        self._payload = payload

    @property
    def run_id(self) -> RunId:
        return self._attempt.claim.run_id

    @property
    def task_id(self) -> str:
        return self._attempt.claim.task

    @property
    def attempt(self) -> int:
        """Which claim of the run this is, from 1."""
        return self._attempt.claim.attempt

    @property
    def failures(self) -> int:
        """Failed attempts in a row before this one."""
        return self._attempt.claim.failures

    @property
    def queue(self) -> str:
        return self._attempt.claim.queue

    @property
    def tenant(self) -> str | None:
        return self._attempt.claim.tenant

    @property
    def concurrency_key(self) -> str | None:
        return self._attempt.claim.concurrency_key

    @property
    def payload(self) -> Any:
        return self._payload

    @property
    def is_async(self) -> bool:
        """Whether the handler is `async def`; a middleware's `call_next()` then returns an awaitable."""
        return self._attempt.task.is_async

    @property
    def trace(self) -> Mapping[str, str]:
        """The trace carrier given at trigger; empty without one."""
        return self._attempt.claim.trace or {}

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._attempt.claim.meta or {}

    @property
    def deadline(self) -> datetime | None:
        """When the attempt must have ended; None when nothing limits it."""
        remaining = self.remaining()
        return None if remaining == inf else datetime.now(UTC) + timedelta(seconds=remaining)

    def remaining(self) -> float:
        """Seconds to the deadline, never negative; infinite when nothing limits the attempt."""
        return self._attempt.remaining()

    def is_cancellation_requested(self) -> bool:
        """Whether the run was asked to stop; known within about 5 s of the request."""
        return self._attempt.cancellation_requested

    def check(self) -> None:
        """Return if the attempt may go on; else raise `Cancelled`, `OutOfTime` or `LeaseLost`. Call it in loops."""
        attempt = self._attempt
        if attempt.lease_lost:
            raise LeaseLost
        if attempt.cancellation_requested:
            raise Cancelled
        if attempt.remaining() <= 0:
            raise OutOfTime

    def release(self, delay: Duration, reason: str | None = None) -> Release:
        """`return ctx.release("10m", reason="not ready")`: the run is due again after `delay`, at no cost while it waits."""
        return Release(delay, reason)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that puts the run id, task and attempt on every line."""
        claim = self._attempt.claim
        return logging.LoggerAdapter(_logger, {"run_id": claim.run_id, "task": claim.task, "attempt": claim.attempt})
