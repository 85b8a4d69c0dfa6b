"""Schedules: when a task runs by itself, and what an operator sees of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args
from zoneinfo import available_timezones

from runlane.domain.durations import Duration, format_duration, gather_duration, parse_duration
from runlane.domain.errors import ConfigurationError, ContractError
from runlane.domain.ids import validate_name
from runlane.domain.moments import to_utc
from runlane.domain.nearest import did_you_mean
from runlane.domain.queue import Queue
from runlane.domain.shown import shown

CatchUp = Literal["latest", "all", "skip"]
"""What becomes of fires that nobody made in time: the latest is made at once, all are (the last hundred), or none."""

SHORTEST = timedelta(seconds=1)
LONGEST_JITTER = timedelta(days=1)
UTC_ZONE = "UTC"


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule fires: by one of `cron` (in `timezone`), `every` and `run_at`; each fire up to `jitter` later than its time."""

    cron: str | None = None
    timezone: str = UTC_ZONE
    every: timedelta | None = None
    run_at: datetime | None = None
    jitter: timedelta = timedelta(0)
    catch_up: CatchUp = "latest"

    @classmethod
    def from_policy(cls, policy: Mapping[str, Any]) -> Timing:
        """The timing that `policy` described; `TypeError`, `ValueError` or `KeyError` if this release cannot read it."""
        told = dict(policy)
        every, run_at, jitter = told.pop("every"), told.pop("run_at"), told.pop("jitter")
        if told["catch_up"] not in get_args(CatchUp):
            raise ValueError(told["catch_up"])
        interval = None if every is None else parse_duration(every)
        if interval is not None and interval < SHORTEST:
            raise ValueError(every)
        moment = None if run_at is None else datetime.fromisoformat(run_at).astimezone(UTC)
        return cls(every=interval, run_at=moment, jitter=parse_duration(jitter), **told)

    def policy(self) -> dict[str, Any]:
        """JSON-able values; equal timings give equal dicts."""
        return {
            "cron": self.cron,
            "timezone": self.timezone,
            "every": None if self.every is None else format_duration(self.every),
            "run_at": None if self.run_at is None else self.run_at.isoformat(),
            "jitter": format_duration(self.jitter),
            "catch_up": self.catch_up,
        }


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Schedule:
    """Runs a task by itself, given in its `schedules=[…]`; what is wrong with it is one `ConfigurationError`.

    Exactly one of `cron` (five fields, in the IANA zone `timezone`, default UTC), `every` (at least 1s; counted from 1970-01-01T00:00Z,
    so that "1h" is every full hour whenever it was deployed) and `run_at` (once; an aware datetime). The cron expression itself is
    checked when the `Runlane` is made.
    `payload`: what every run gets, default `{}`. `queue`: instead of the task's. `enabled=False`: known, and does not fire.
    `jitter`: each run is due up to so much after its fire, always the same for the same fire; at most 1d, and less than `every`.
    `catch_up`: of fires missed in an outage "latest" makes the last one at once, "all" the last hundred, "skip" none.
    """

    id: str
    timing: Timing
    payload: Any
    queue: Queue | None
    enabled: bool

    def __init__(
        self,
        id: str,
        *,
        cron: str | None = None,
        timezone: str | None = None,
        every: Duration | None = None,
        run_at: datetime | None = None,
        payload: Any = None,
        queue: Queue | None = None,
        enabled: bool = True,
        jitter: Duration = timedelta(0),
        catch_up: CatchUp = "latest",
    ) -> None:
        faults = [*_name_faults(id), *_choice_faults(cron, timezone, every, run_at), *_kind_faults(cron, queue, enabled, catch_up)]
        unread: list[str] = []
        interval = None if every is None else gather_duration(every, "every", unread)
        spread = gather_duration(jitter, "jitter", unread)
        faults += unread or _length_faults(interval, spread)
        moment = None if run_at is None else _moment(run_at, faults)
        ConfigurationError.raise_if(f"schedule {shown(id)}: {fault}" for fault in faults)
        values = {
            "id": id,
            "timing": Timing(cron and " ".join(cron.split()), timezone or UTC_ZONE, interval, moment, spread, catch_up),
            "payload": {} if payload is None else payload,
            "queue": queue,
            "enabled": enabled,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _name_faults(id: str) -> Iterator[str]:
    try:
        validate_name(id, "id")
    except ContractError as error:
        yield error.message


def _choice_faults(cron: object, timezone: object, every: object, run_at: object) -> Iterator[str]:
    given = [name for name, value in (("cron", cron), ("every", every), ("run_at", run_at)) if value is not None]
    if len(given) != 1:
        yield f"{', '.join(given) or 'no time'}: give exactly one of cron, every and run_at"
    if timezone is not None:
        if cron is None:
            yield "timezone: only a cron expression has one; leave it out"
        yield from _zone_faults(timezone)


def _zone_faults(timezone: object) -> Iterator[str]:
    if not isinstance(timezone, str) or (timezone != UTC_ZONE and timezone not in _zones()):
        near = did_you_mean(timezone, _zones()) if isinstance(timezone, str) else ""
        yield f'timezone: {shown(timezone)} is no IANA zone; give one like "America/New_York"{near}'


@cache
def _zones() -> frozenset[str]:
    """Names that mean the same on every machine. Of files there are more: a machine's own zone, and on some any path."""
    found = find_spec("tzdata")
    if found is None or found.origin is None:
        return frozenset(available_timezones() - {"localtime", "Factory"})
    # The package's own list: to look for the files takes a cold start 20 ms.
    return frozenset(Path(found.origin).with_name("zones").read_text(encoding="utf-8").split()) - {"Factory"}


def _kind_faults(cron: object, queue: object, enabled: object, catch_up: object) -> Iterator[str]:
    if cron is not None and (not isinstance(cron, str) or not cron.strip()):
        yield f'cron: {shown(cron)} is no expression; give five fields, like "0 9 * * *"'
    if queue is not None and not isinstance(queue, Queue):
        yield f"queue: {shown(queue)} is not a Queue"
    if not isinstance(enabled, bool):
        yield f"enabled: {shown(enabled)} is neither True nor False"
    if catch_up not in get_args(CatchUp):
        yield f'catch_up: {shown(catch_up)} is none; give "latest", "all" or "skip"'


def _length_faults(every: timedelta | None, jitter: timedelta) -> Iterator[str]:
    if every is not None and every < SHORTEST:
        yield "every: is too short; give at least 1s"
    if jitter > LONGEST_JITTER:
        yield f"jitter: {format_duration(jitter)} is too long; give at most 1d"
    elif every and jitter >= every:
        yield f"jitter: {format_duration(jitter)} is not less than every={format_duration(every)}; give less"


def _moment(value: object, faults: list[str]) -> datetime | None:
    try:
        return to_utc(value, "run_at")
    except ContractError as error:
        faults.append(error.message)
        return None
