"""One execution under one lease: start, load, perform, classify, decide. What follows (settle, publish) is the batch's."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from inspect import isawaitable
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Protocol

from runlane.domain.durations import ZERO
from runlane.domain.outcome import AttemptEnd, Counters, NotStarted, Raised, Released, Returned, Settlement, TimedOut, decide
from runlane.domain.retry import Retry
from runlane.ports.clock import Clock
from runlane.ports.stores import ClaimedRun
from runlane.services.budget import TimeBudget
from runlane.services.context import Cancelled, Context, OutOfTime, Release
from runlane.services.payload import AnyTask, PayloadCodec

if TYPE_CHECKING:
    from asyncio import Task as AsyncTask

Middleware = Callable[[Context, Callable[[], Any]], Any]
"""`def wrap(run, call_next)`: returns what `call_next()` returns, or something else. For an `async def` task `call_next()`
returns an awaitable, so a middleware that wraps those is itself `async def`, or returns an awaitable if `run.is_async`."""

DEFAULT_RETRY = Retry()
NEVER_FITS_DELAY = timedelta(seconds=30)

STOPPING = "worker_stopping"
"""The reason of a release that a stop of the worker brought about."""


class Starter(Protocol):
    """Who started an attempt, gave it its time, and is told of its end."""

    budget: TimeBudget

    def finish(self, attempt: Attempt) -> None:
        """Called by the thread that ran the attempt, once it has its settlement."""
        ...


class Attempt:
    """A claim in this process. `ends_at` is None until it starts; `settlement` is None until it has ended."""

    __slots__ = (
        "batch",
        "cancellation_requested",
        "claim",
        "claimed_at",
        "clock",
        "coroutine",
        "ends_at",
        "interrupted",
        "is_stray",
        "lease_lost",
        "max_duration",
        "settlement",
        "started_at",
        "task",
    )

    def __init__(self, claim: ClaimedRun, task: AnyTask, batch: Starter, clock: Clock, claimed_at: float) -> None:
        limit = task.options.max_attempt_duration
        self.claim = claim
        self.task = task
        self.batch = batch
        self.clock = clock
        self.claimed_at = claimed_at
        self.max_duration = None if limit is None else limit.total_seconds()
        self.started_at = claimed_at
        self.ends_at: float | None = None
        """The deadline that it was started with."""
        self.settlement: Settlement | None = None
        self.coroutine: AsyncTask[None] | None = None
        self.cancellation_requested = False
        self.lease_lost = False
        self.interrupted = False
        self.is_stray = False

    @property
    def deadline(self) -> float | None:
        """When it must have ended, by the process's clock; None until it starts. A stop brings it forward."""
        return None if self.ends_at is None else min(self.ends_at, self.batch.budget.end)

    def remaining(self) -> float:
        return 0.0 if self.deadline is None else max(0.0, self.deadline - self.clock.monotonic())

    def end(self, settlement: Settlement, end: AttemptEnd) -> None:
        """Keep what is to be written; not the end itself, whose traceback would keep the handler's frames."""
        self.settlement = settlement

    @property
    def is_stopped(self) -> bool:
        """Whether its time is up because the worker is being stopped, which is no fault of its own."""
        budget = self.batch.budget
        return budget.is_stopping and self.ends_at is not None and self.ends_at > budget.end

    def out_of_time(self) -> AttemptEnd:
        """How it ends when its time is up."""
        return Released(ZERO, STOPPING, keeps_failures=True) if self.is_stopped else self.timed_out()

    def timed_out(self) -> TimedOut:
        return TimedOut(timedelta(seconds=max(0.0, (self.ends_at or self.started_at) - self.started_at)))


class Pipeline:
    """The steps of an attempt. Neither `execute` nor `execute_async` raises: every end becomes a settlement."""

    def __init__(
        self,
        codec: PayloadCodec,
        middleware: Sequence[Middleware],
        clock: Clock,
        *,
        rng: Random | None = None,
        store_tracebacks: bool = True,
    ) -> None:
        self._codec = codec
        self._middleware = tuple(reversed(middleware))
        self._clock = clock
        self._rng = rng or SystemRandom()
        self._store_tracebacks = store_tracebacks

    def execute(self, attempt: Attempt) -> None:
        if not self._start(attempt):
            return
        try:
            end = self._classify(self._perform(attempt))
        except BaseException as error:  # The border around the user's task.
            end = _ended_by(attempt, error)
        self.conclude(attempt, end)

    async def execute_async(self, attempt: Attempt) -> None:
        if not self._start(attempt):
            return
        try:
            value = self._perform(attempt)
            end = self._classify(await value if isawaitable(value) else value)
        except BaseException as error:  # The border around the user's task.
            end = _ended_by(attempt, error)
        self.conclude(attempt, end)

    def conclude(self, attempt: Attempt, end: AttemptEnd) -> None:
        try:
            attempt.end(self.decide(attempt, end), end)
        except BaseException as error:  # An exception so odd that it cannot be described; its run must be settled all the same.
            described = RuntimeError(f"the attempt's failure cannot be described: {type(error).__name__}")
            attempt.end(self.decide(attempt, Raised(described)), Raised(described))

    def decide(self, attempt: Attempt, end: AttemptEnd) -> Settlement:
        """What is written for this end."""
        claim = attempt.claim
        return decide(
            claim.run_id,
            claim.token,
            end,
            Counters(claim.failures, claim.max_attempts, claim.attempt),
            attempt.task.options.retry or DEFAULT_RETRY,
            self._rng,
            store_traceback=self._store_tracebacks,
        )

    def _start(self, attempt: Attempt) -> bool:
        now = self._clock.monotonic()
        budget = attempt.batch.budget
        if not budget.fits(attempt.max_duration, now):
            self.conclude(attempt, NotStarted(ZERO, "out_of_time") if budget.could_fit(attempt.max_duration) else _never_fits(attempt))
            return False
        attempt.started_at = now
        attempt.ends_at = budget.deadline(attempt.max_duration, now)
        return True

    def _perform(self, attempt: Attempt) -> Any:
        task = attempt.task
        payload = self._codec.decode(task, attempt.claim.payload)
        if not self._middleware:
            return task.handler(payload, Context(attempt, payload)) if task.takes_context else task.handler(payload)
        return self._wrapped(task, payload, Context(attempt, payload))

    def _wrapped(self, task: AnyTask, payload: Any, context: Context) -> Any:
        call: Callable[[], Any] = partial(task.handler, payload, context) if task.takes_context else partial(task.handler, payload)
        for middleware in self._middleware:
            call = partial(middleware, context, call)
        return call()

    def _classify(self, value: Any) -> AttemptEnd:
        if isinstance(value, Release):
            return Released(value.delay, value.reason)
        return Returned(self._codec.encode_result(value))


def _ended_by(attempt: Attempt, error: BaseException) -> AttemptEnd:
    if isinstance(error, OutOfTime) or (isinstance(error, CancelledError) and attempt.interrupted):
        return attempt.out_of_time()
    if isinstance(error, Cancelled) and attempt.cancellation_requested:
        return Released(ZERO, "cancelled")
    return Raised(_without_own_frames(error))


def _without_own_frames(error: BaseException) -> BaseException:
    """The application's part of the traceback, which is what its reader wants; all of it if there is none."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def _never_fits(attempt: Attempt) -> NotStarted:
    return NotStarted(NEVER_FITS_DELAY, f"max_attempt_duration_too_long: {attempt.max_duration} s does not fit into this worker's time")
