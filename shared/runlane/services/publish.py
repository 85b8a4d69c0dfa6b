"""Wakeups out, and their fate into storage. Never fails the work they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from runlane.domain.errors import RunlaneError
from runlane.domain.ids import RunId
from runlane.ports.clock import Clock
from runlane.ports.stores import ClaimedRun, PublishMark, PublishResult, TriggerStore, Wakeup
from runlane.ports.telemetry import Telemetry
from runlane.ports.transport import Transport

MARK_AFTER = 5.0
"""Seconds that a success is kept before it is marked. Most runs have been claimed by then, and have nothing left to mark."""
MOST_UNMARKED = 1000
FORGET_AFTER = 15.0
"""Seconds after which maintenance takes what is unmarked for lost, and publishes it again: marking it would speak of the wrong wakeup."""


class Publisher:
    """Publishes after the commit; what could not be sent, or not be marked, is left to maintenance.

    Failures are marked at once, successes later and together: by the first `publish` after `MARK_AFTER`, or by `flush`. Whoever does
    neither leaves up to `MOST_UNMARKED` runs to be woken once more, if nobody claims them within a quarter of a minute.
    """

    def __init__(self, transport: Transport | None, store: TriggerStore, clock: Clock, telemetry: Telemetry) -> None:
        self._transport = transport
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        # By run, oldest first. Without a lock, which a fork could leave to a child for ever: each step on it is one that no thread divides.
        self._unmarked: dict[RunId, tuple[float, PublishResult]] = {}

    def publish(self, wakeups: Sequence[Wakeup]) -> int:
        """Send wakeups and have them marked; the number sent. Without a transport, those that poll find the runs by themselves."""
        if not wakeups or self._transport is None:
            return 0
        began = self._clock.monotonic()
        results = self._sent(self._transport, wakeups)
        failed = [result for result in results if not result.published]
        for result in results:
            if result.published and not result.hint:  # A hint that was sent has no row to mark.
                self._unmarked.pop(result.run_id, None)
                self._unmarked[result.run_id] = began, result
        self._mark([(began, result) for result in failed] + self._taken(MARK_AFTER))
        return len(results) - len(failed)

    def forget(self, claims: Iterable[ClaimedRun]) -> None:
        """What this process has claimed itself has no row left to mark."""
        for claim in claims:
            self._unmarked.pop(claim.run_id, None)

    def flush(self) -> None:
        """Mark what has been sent and is not marked yet."""
        self._mark(self._taken(0.0))

    def _sent(self, transport: Transport, wakeups: Sequence[Wakeup]) -> Sequence[PublishResult]:
        try:
            results: Sequence[PublishResult] = transport.publish(wakeups)
        except Exception as error:  # A transport that breaks its promise must not undo a trigger that is committed.
            results = [PublishResult(wakeup.run_id, published=False, error=repr(error), hint=wakeup.hint) for wakeup in wakeups]
        failed = [result for result in results if not result.published]
        if failed:
            self._telemetry.emit("publish.failed", count=len(failed), error=failed[0].error)
        return results

    def _taken(self, age: float) -> list[tuple[float, PublishResult]]:
        """What is to be marked now: all, once the oldest is as old as that or there are too many, but for what is given up."""
        now, taken = self._clock.monotonic(), list[tuple[float, PublishResult]]()
        # Another thread may change it between two steps: then that one looks.
        with suppress(StopIteration, RuntimeError, KeyError):
            oldest, _ = next(iter(self._unmarked.values()))
            if now - oldest >= age or len(self._unmarked) >= MOST_UNMARKED:
                while True:
                    taken.append(self._unmarked.popitem()[1])
        return [(began, result) for began, result in reversed(taken) if now - began < FORGET_AFTER]

    def _mark(self, sent: Sequence[tuple[float, PublishResult]]) -> None:
        if not sent:
            return
        now = self._clock.monotonic()
        try:
            self._store.mark_published([PublishMark(result, now - began) for began, result in sent])
        except RunlaneError as error:
            self._telemetry.emit("publish.unmarked", count=len(sent), error=error.code)
