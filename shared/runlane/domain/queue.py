"""Queues: the policy that a deployer writes, and the counters that a queue reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from runlane.domain.durations import LONGEST, MICROSECOND, Duration, format_duration, gather_duration
from runlane.domain.errors import ConfigurationError, ContractError
from runlane.domain.ids import validate_name
from runlane.domain.shown import shown

LARGEST_COUNT = 2_147_483_647
"""The largest Postgres `integer`."""


@dataclass(frozen=True, slots=True, init=False)
class Throttle:
    """At most `limit + burst` starts of a partition in any half-open `period`; burst 0: evenly spaced.

    Every attempt is a start. On average nearly `limit` a period start: at most a fortieth of the period, and no more than a quarter of a
    second, is kept for starts that come late. `limit` and `burst` count runs; the burst is worth at most 100 years.
    """

    limit: int
    period: timedelta
    burst: int = 0

    def __init__(self, limit: int, period: Duration, burst: int = 0) -> None:
        faults = [*_count_faults("throttle limit", limit, least=1), *_count_faults("throttle burst", burst, least=0)]
        length = gather_duration(period, "throttle period", faults, positive=True)
        if not faults and length // MICROSECOND * burst > LONGEST // MICROSECOND * limit:
            faults.append(f"throttle burst: {burst} at {limit} in {format_duration(length)} is worth more than 100 years; give less")
        ConfigurationError.raise_if(faults)
        _assign(self, limit=limit, period=length, burst=burst)

    def policy(self) -> dict[str, Any]:
        return {"limit": self.limit, "period": format_duration(self.period), "burst": self.burst}


@dataclass(frozen=True, slots=True, init=False)
class Queue:
    """A queue and its policy; a wrong one raises `ConfigurationError` with every fault.

    `concurrency_limit` bounds each partition and `total_limit` the whole queue, both in slots (default: unlimited).
    `dispatch_timeout` is how long a dispatch row may stay unclaimed (default: the lease duration; 5 minutes on
    unlimited queues). `dispatch_window` is how many dispatch rows the queue may have, softly counted. `throttle` bounds how often runs
    of each partition start.
    """

    name: str
    default: bool = field(default=False, compare=False)
    """Taken when neither trigger nor task names a queue: the runtime's choice, no part of the policy that is compared."""
    concurrency_limit: int | None = None
    total_limit: int | None = None
    dispatch_timeout: timedelta | None = None
    dispatch_window: int = 1000
    throttle: Throttle | None = None

    def __init__(
        self,
        name: str,
        *,
        default: bool = False,
        concurrency_limit: int | None = None,
        total_limit: int | None = None,
        dispatch_timeout: Duration | None = None,
        dispatch_window: int = 1000,
        throttle: Throttle | None = None,
    ) -> None:
        faults = [*_name_faults(name), *_count_faults("dispatch_window", dispatch_window, least=1)]
        if concurrency_limit is not None:
            faults += _count_faults("concurrency_limit", concurrency_limit, least=1)
        if total_limit is not None:
            faults += _count_faults("total_limit", total_limit, least=1)
        faults += _throttle_faults(throttle)
        timeout = None if dispatch_timeout is None else gather_duration(dispatch_timeout, "dispatch_timeout", faults, positive=True)
        ConfigurationError.raise_if(f"queue {shown(name)}: {fault}" for fault in faults)
        _assign(
            self,
            name=name,
            default=default,
            concurrency_limit=concurrency_limit,
            total_limit=total_limit,
            dispatch_timeout=timeout,
            dispatch_window=dispatch_window,
            throttle=throttle,
        )

    @classmethod
    def from_policy(cls, name: str, policy: Mapping[str, Any]) -> Queue:
        """The queue that `policy()` described; keys that are missing take their defaults."""
        throttle = policy.get("throttle")
        return cls(name, **{**policy, "throttle": Throttle(**throttle) if throttle else None})

    @property
    def is_bounded(self) -> bool:
        """Whether a dispatch row of this queue holds a slot."""
        return self.concurrency_limit is not None or self.total_limit is not None

    def policy(self) -> dict[str, Any]:
        """The policy as JSON-able values, durations as text; equal policies give equal dicts."""
        return {
            "concurrency_limit": self.concurrency_limit,
            "total_limit": self.total_limit,
            "dispatch_timeout": None if self.dispatch_timeout is None else format_duration(self.dispatch_timeout),
            "dispatch_window": self.dispatch_window,
            "throttle": None if self.throttle is None else self.throttle.policy(),
        }


def _assign(instance: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _name_faults(name: str) -> Iterator[str]:
    try:
        validate_name(name, "name")
    except ContractError as error:
        yield error.message


def _count_faults(what: str, value: object, *, least: int) -> Iterator[str]:
    # A bool is an int to Python, but never a count that someone meant.
    if isinstance(value, bool) or not isinstance(value, int):
        yield f"{what}: {shown(value)} is not a whole number"
    elif not least <= value <= LARGEST_COUNT:
        yield f"{what}: {shown(value)} is out of range; give {least} to {LARGEST_COUNT}"


def _throttle_faults(value: object) -> Iterator[str]:
    if value is not None and not isinstance(value, Throttle):
        yield f"throttle: {shown(value)} is not a Throttle; give Throttle(limit, period)"
