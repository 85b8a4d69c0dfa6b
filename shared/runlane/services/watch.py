"""How the thread of a delivery waits: long enough that attempts share a transaction, never past what else is due."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from runlane.domain.ids import RunId
from runlane.services.attempt import Attempt
from runlane.services.budget import TimeBudget
from runlane.services.early import EarlyWakeups
from runlane.services.finished import FinishedAttempts
from runlane.services.intake import Intake
from runlane.services.worker import Worker

RAMP = 0.001
"""Seconds in which `QUICK` attempts must end, or more threads are called."""
QUICK = 4
LINGER = 0.002
"""Seconds to wait for others to end once one has, so that they share a transaction."""
GROUP = 200
"""The most attempts that are waited for before settling."""


class Watch:
    """`attempts` are the delivery's open ones; it changes them, this only looks."""

    def __init__(
        self,
        worker: Worker,
        budget: TimeBudget,
        attempts: Mapping[RunId, Attempt],
        finished: FinishedAttempts,
        early: EarlyWakeups,
        intake: Intake,
    ) -> None:
        self.has_news = False
        """Attempts were submitted since the last wait."""
        self._worker = worker
        self._budget = budget
        self._attempts = attempts
        self._finished = finished
        self._early = early
        self._intake = intake
        self._wakes_at = inf

    def wait(self) -> None:
        """Until a group has ended, or until something else is due."""
        self._finished.quiet()
        if self.has_news:
            self.has_news = False
            self._ramp_up()
        if not self._finished:
            self._finished.wait_for_one(self._patience())
        if 0 < len(self._finished) < GROUP:
            self._finished.wait_for_all(LINGER)

    def sleeps_too_long(self) -> bool:
        """Whether something may be due before the wait, under way on another thread, ends by itself."""
        now = self._worker.clock.monotonic()
        deadlines = [now + attempt.max_duration for attempt in self._attempts.values() if attempt.max_duration is not None]
        return min([self._early.next_at, self._looks_at(), *deadlines]) < self._wakes_at

    def _ramp_up(self) -> None:
        """Call more threads, twice as many each time, while attempts wait and those under way do not get through quickly."""
        done, more = 0, 1
        while not self._finished.are_all and done < GROUP:
            self._finished.wait_for_all(RAMP)
            before, done = done, len(self._finished)
            if done - before < QUICK and not self._finished.are_all:
                if not self._worker.pool.widen(more):
                    return
                more *= 2

    def _patience(self) -> float:
        """Seconds until the next thing that is not the end of an attempt."""
        self._wakes_at = inf  # What is claimed while the attempts are looked at may not be among them.
        now = self._worker.clock.monotonic()
        moments = [now + self._worker.heartbeat.interval, self._early.next_at, self._looks_at()]
        moments += [self._moment(attempt, now) for attempt in list(self._attempts.values())]
        self._wakes_at = min(moments)
        return max(0.0, self._wakes_at - now)

    def _looks_at(self) -> float:
        """When to take in more."""
        return self._intake.next_at if self._intake.is_open and self._worker.room > 0 else inf

    def _moment(self, attempt: Attempt, now: float) -> float:
        """When to look at an attempt again."""
        if attempt.deadline is None:
            return max(self._budget.end, now + RAMP)
        if not attempt.interrupted:
            return attempt.deadline
        given_up_at = attempt.deadline + self._budget.grace
        return given_up_at if given_up_at > now else inf
