"""When a failed attempt is tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from runlane.domain.durations import LONGEST, MICROSECOND, Duration, gather_duration, parse_duration
from runlane.domain.errors import ConfigurationError
from runlane.domain.shown import shown

LARGEST_MAX_ATTEMPTS = 32_767
"""The largest Postgres `smallint`."""

_ENOUGH_DOUBLINGS = (LONGEST // MICROSECOND).bit_length()
"""After this many doublings a microsecond is over the longest duration."""


class RetryAfter(Exception):
    """Raised by a handler: this attempt failed; try again after `delay` if attempts are left."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        self.delay = parse_duration(delay, "RetryAfter delay")
        super().__init__(delay, reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or f"retry after {self.delay}"


class NonRetryable(Exception):
    """Raised by a handler: this run failed, and trying again would not help."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, init=False)
class Exponential:
    """`base`, twice that, four times that, … up to `max`; with jitter, evenly between half of it and all of it."""

    base: timedelta
    max: timedelta = timedelta(minutes=5)
    jitter: bool = True

    def __init__(self, base: Duration, max: Duration = "5m", jitter: bool = True) -> None:
        faults: list[str] = []
        first = gather_duration(base, "backoff base", faults)
        longest = gather_duration(max, "backoff max", faults)
        if not faults and longest < first:
            faults.append(f"backoff max: {shown(max)} is shorter than the base {shown(base)}; give at least the base")
        ConfigurationError.raise_if(faults)
        object.__setattr__(self, "base", first)
        object.__setattr__(self, "max", longest)
        object.__setattr__(self, "jitter", jitter)


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """The same delay after every failure."""

    delay: timedelta

    def __init__(self, delay: Duration) -> None:
        faults: list[str] = []
        object.__setattr__(self, "delay", gather_duration(delay, "backoff delay", faults))
        ConfigurationError.raise_if(faults)


Backoff = Exponential | Fixed | Callable[[int], Duration]
"""A callable gets the number of failures, from 1, and returns the delay."""

DEFAULT_BACKOFF = Exponential("1s", max="5m", jitter=True)


@dataclass(frozen=True, slots=True)
class Retry:
    """At most `max_attempts` failed attempts in a row, the first included, with `backoff` between them."""

    max_attempts: int = 3
    backoff: Backoff = field(default=DEFAULT_BACKOFF)

    def __post_init__(self) -> None:
        ConfigurationError.raise_if([*_attempts_faults(self.max_attempts), *_backoff_faults(self.backoff)])


def retry_delay(retry: Retry, failures: int, rng: Random) -> timedelta:
    """How long to wait after the `failures`-th failure in a row (from 1); never negative, never over 100 years.

    A backoff callable that raises, or returns no duration, is replaced by the default backoff: the failure
    must be settled, or the lease would expire and the same callable would break the recovery as well.
    """
    backoff = retry.backoff
    if isinstance(backoff, Fixed):
        return backoff.delay
    if isinstance(backoff, Exponential):
        return _exponential_delay(backoff, failures, rng)
    try:
        return parse_duration(backoff(failures), "backoff")
    except BaseException:  # An exit, too: whoever asks is a worker that has to settle.
        return _exponential_delay(DEFAULT_BACKOFF, failures, rng)


def _exponential_delay(backoff: Exponential, failures: int, rng: Random) -> timedelta:
    # Whole microseconds, because a timedelta overflows where an int does not.
    doublings = min(max(failures - 1, 0), _ENOUGH_DOUBLINGS)
    ceiling = min((backoff.base // MICROSECOND) << doublings, backoff.max // MICROSECOND)
    chosen = rng.randint(ceiling - ceiling // 2, ceiling) if backoff.jitter else ceiling
    return timedelta(microseconds=chosen)


def _attempts_faults(value: object) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_MAX_ATTEMPTS:
        yield f"max_attempts: {shown(value)} is not a whole number from 1 to {LARGEST_MAX_ATTEMPTS}"


def _backoff_faults(value: object) -> Iterator[str]:
    if not isinstance(value, Exponential | Fixed) and not callable(value):
        yield f"backoff: {shown(value)} is no backoff; give Exponential(…), Fixed(…) or a function of the failures"
