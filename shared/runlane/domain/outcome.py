"""How an attempt ended, and the settlement that follows from it."""

from __future__ import annotations

import traceback as tracebacks
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import NamedTuple

from runlane.domain.durations import ZERO, format_duration, parse_duration
from runlane.domain.errors import RunlaneError
from runlane.domain.excerpt import head, tail
from runlane.domain.ids import RunId
from runlane.domain.retry import NonRetryable, Retry, RetryAfter, retry_delay

MESSAGE_BYTES = 1024
TRACEBACK_BYTES = 8192
TYPE_BYTES = 255
TRACEBACK_FRAMES = 64


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed, as it is stored: message up to 1 KiB, traceback up to 8 KiB (its end, which names the culprit).

    Longer text is cut, NUL and lone surrogates are replaced, so that a failure can always be stored.
    """

    code: str
    type: str
    message: str
    traceback: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", head(self.code, TYPE_BYTES))
        object.__setattr__(self, "type", head(self.type, TYPE_BYTES))
        object.__setattr__(self, "message", head(self.message, MESSAGE_BYTES))
        if self.traceback is not None:
            object.__setattr__(self, "traceback", tail(self.traceback, TRACEBACK_BYTES))

    @classmethod
    def of(cls, error: BaseException, *, store_traceback: bool = True) -> Failure:
        """The failure that an exception means; its code is a `RunlaneError`'s own, `non_retryable`, or `handler_error`."""
        return cls(_code(error), _type_name(error), _message(error), _traceback(error) if store_traceback else None)


class OutcomeKind(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRY = "retry"
    """The attempt failed; the run goes on after `delay`."""
    RELEASED = "released"
    LEASE_EXPIRED = "lease_expired"
    """Recovery of an expired lease: a retry after `delay`, or the end if `final`."""
    HANDED_BACK = "handed_back"
    """Claimed but not started: due again after `delay`, and the attempt does not count."""


class Settlement(NamedTuple):
    """What is written for one lease, if its token is still stored. `result` is JSON text, set with `succeeded` only."""

    run_id: RunId
    token: str
    kind: OutcomeKind
    result: str | None = None
    failure: Failure | None = None
    delay: timedelta | None = None
    reason: str | None = None
    final: bool = False
    attempt: int = 0
    """Which claim of the run it ends; 0: not told."""
    tried_before: bool = False
    """An earlier try may have been committed, and only its answer lost: then this one is answered as settled."""
    keeps_failures: bool = False
    """Of a release: earlier failures in a row still count."""


class Returned(NamedTuple):
    """The handler returned; its value is already JSON text."""

    result: str | None


class Raised(NamedTuple):
    """The handler, or the codec around it, raised."""

    error: BaseException


class Released(NamedTuple):
    """The handler released the run, suspended, or stopped because it was asked to. `keeps_failures`: the worker brought it about."""

    delay: timedelta
    reason: str | None = None
    keeps_failures: bool = False


class TimedOut(NamedTuple):
    """The attempt had not ended by its deadline."""

    after: timedelta


class Lost:
    """Nobody extended the lease until it expired."""

    __slots__ = ()


class NotStarted(NamedTuple):
    """Claimed, but this process cannot start it."""

    delay: timedelta = ZERO
    reason: str | None = None


AttemptEnd = Returned | Raised | Released | TimedOut | Lost | NotStarted


class Counters(NamedTuple):
    """A claim's counters: `failures` before this attempt, and the attempts that the run may fail."""

    failures: int
    max_attempts: int
    attempt: int = 0

    @property
    def is_last(self) -> bool:
        """Whether a failure now is the end."""
        return self.failures + 1 >= self.max_attempts


def decide(
    run_id: RunId,
    token: str,
    end: AttemptEnd,
    counters: Counters,
    retry: Retry,
    rng: Random,
    *,
    store_traceback: bool = True,
) -> Settlement:
    """The settlement of an attempt that ended like this; what a requested cancellation makes of it is the transition table's.

    `counters.max_attempts` is the stored one, which wins over `retry.max_attempts`: it is what the run was promised.
    """
    match end:
        case Returned(result):
            return Settlement(run_id, token, OutcomeKind.SUCCEEDED, result=result, attempt=counters.attempt)
        case Released(delay, reason, keeps_failures):
            told = None if reason is None else head(str(reason), MESSAGE_BYTES)
            return Settlement(
                run_id, token, OutcomeKind.RELEASED, delay=delay, reason=told, attempt=counters.attempt, keeps_failures=keeps_failures
            )
        case NotStarted(delay, reason):
            return Settlement(run_id, token, OutcomeKind.HANDED_BACK, delay=delay, reason=reason, attempt=counters.attempt)
    failure = _failure(end, store_traceback=store_traceback)
    ends = counters.is_last or not _may_retry(end)
    wait = None if ends else _delay(end, counters, retry, rng)
    if isinstance(end, Lost):
        return Settlement(run_id, token, OutcomeKind.LEASE_EXPIRED, failure=failure, delay=wait, final=ends)
    kind = OutcomeKind.FAILED if ends else OutcomeKind.RETRY
    return Settlement(run_id, token, kind, failure=failure, delay=wait, attempt=counters.attempt)


def is_retryable(error: BaseException) -> bool:
    """Whether trying again may help: not if the handler or a `RunlaneError` says otherwise."""
    return error.retryable if isinstance(error, RunlaneError) else not isinstance(error, NonRetryable)


def _failure(end: Raised | TimedOut | Lost, *, store_traceback: bool) -> Failure:
    match end:
        case Raised(error):
            return Failure.of(error, store_traceback=store_traceback)
        case TimedOut(after):
            return Failure("timed_out", "TimedOut", f"the attempt had not ended by its deadline, {format_duration(after)} after its start")
        case Lost():
            return Failure("lease_expired", "LeaseExpired", "the lease expired: the worker died, or was cut off from the database")


def _may_retry(end: Raised | TimedOut | Lost) -> bool:
    return not isinstance(end, Raised) or is_retryable(end.error)


def _delay(end: Raised | TimedOut | Lost, counters: Counters, retry: Retry, rng: Random) -> timedelta:
    if isinstance(end, Raised) and isinstance(end.error, RetryAfter):
        # Parsed once more, as a subclass may have set anything.
        return parse_duration(end.error.delay, "RetryAfter delay")
    return retry_delay(retry, counters.failures + 1, rng)


def _code(error: BaseException) -> str:
    if isinstance(error, RunlaneError):
        return error.code
    return "non_retryable" if isinstance(error, NonRetryable) else "handler_error"


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    # The text is the application's code, which may itself be broken, or exit; the failure is stored all the same.
    try:
        return str(error)
    except BaseException:
        return f"<{_type_name(error)} has no readable message>"


def _traceback(error: BaseException) -> str:
    return "".join(tracebacks.format_exception(error, limit=-TRACEBACK_FRAMES))
