"""One attempt in the calling thread, through the pipeline that production uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from math import inf

from runlane.domain.outcome import AttemptEnd, Raised, Settlement
from runlane.ports.clock import Clock
from runlane.ports.stores import ClaimedRun
from runlane.services.attempt import Attempt, Pipeline
from runlane.services.budget import TimeBudget
from runlane.services.payload import AnyTask


class Nobody:
    """Starts an attempt and waits for nothing."""

    def __init__(self, clock: Clock) -> None:
        self.budget = TimeBudget(clock, None, 0.0)

    def finish(self, attempt: Attempt) -> None:
        return None


class AttemptHere(Attempt):
    """An attempt whose cancellation may be asked of the test at every look, and which keeps what the handler raised."""

    __slots__ = ("_look", "error", "was_cancelled")

    def __init__(self, claim: ClaimedRun, task: AnyTask, clock: Clock, cancelled: bool | Callable[[], bool] = False) -> None:
        self._look = cancelled if callable(cancelled) else None
        super().__init__(claim, task, Nobody(clock), clock, clock.monotonic())
        self.was_cancelled = cancelled is True
        self.error: BaseException | None = None

    def limit(self, seconds: float) -> None:
        """Give it so long at most."""
        self.max_duration = min(seconds, inf if self.max_duration is None else self.max_duration)

    def end(self, settlement: Settlement, end: AttemptEnd) -> None:
        super().end(settlement, end)
        self.error = end.error if isinstance(end, Raised) else None

    @property
    def cancellation_requested(self) -> bool:
        self.was_cancelled = self.was_cancelled or (self._look is not None and self._look())
        return self.was_cancelled

    @cancellation_requested.setter
    def cancellation_requested(self, asked: bool) -> None:
        self.was_cancelled = asked


def execute_here(pipeline: Pipeline, attempt: AttemptHere) -> Settlement:
    """Run the handler to its end, on an event loop of its own if it is `async def`. Raises nothing."""
    if attempt.task.is_async:
        _run_async(pipeline, attempt)
    else:
        pipeline.execute(attempt)
    settlement = attempt.settlement
    assert settlement is not None, "a pipeline gives every attempt a settlement"
    return settlement


def _run_async(pipeline: Pipeline, attempt: Attempt) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(_until_deadline(pipeline, attempt))
        return
    # An async test: its loop waits for us, so the handler gets a loop of its own.
    with ThreadPoolExecutor(1, "runlane-here") as aside:
        aside.submit(copy_context().run, asyncio.run, _until_deadline(pipeline, attempt)).result()


async def _until_deadline(pipeline: Pipeline, attempt: Attempt) -> None:
    """As in production: at its deadline an `async def` handler is cancelled."""
    running = asyncio.ensure_future(pipeline.execute_async(attempt))
    limit = attempt.max_duration
    timer = None if limit is None else asyncio.get_running_loop().call_later(limit, _interrupt, attempt, running)
    await running
    if timer is not None:
        timer.cancel()


def _interrupt(attempt: Attempt, running: asyncio.Future[None]) -> None:
    attempt.interrupted = True
    running.cancel()


def raise_to_the_test(error: BaseException | None) -> None:
    """Raise what a handler let through although it is no business of its run: Ctrl-C, and pytest's own `fail`, `skip` and `exit`."""
    if error is not None and _is_for_the_test(error):
        raise error


def _is_for_the_test(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt) or any(kind.__module__.startswith("_pytest.") for kind in type(error).__mro__)
