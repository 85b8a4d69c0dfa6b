"""The fires of a timing, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256

from cronsim import CronSimError

from runlane.domain.durations import MICROSECOND
from runlane.domain.records import Fire
from runlane.domain.schedule import Timing
from runlane.services.schedules.cron import Cron

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""What intervals are counted from: no deploy and no restart moves them."""
_FIRST_SPAN = timedelta(minutes=1)
_GROWTH = 4

NextAfter = Callable[[datetime], datetime | None]
"""The first fire later than an instant; None: there is none."""


def next_after(timing: Timing) -> NextAfter:
    if timing.cron is not None:
        return _cron(timing.cron, timing.timezone).next_after
    if timing.every is not None:
        every = timing.every
        return lambda moment: EPOCH + ((moment - EPOCH) // every + 1) * every
    once = timing.run_at
    return lambda moment: once if once is not None and once > moment else None


def readable(timing: Timing | None) -> NextAfter | None:
    """The same; None if this process cannot tell: a newer release's timing, or a zone or an expression that is unknown here."""
    try:
        return None if timing is None else next_after(timing)
    except (CronSimError, LookupError, ValueError, TypeError, AttributeError, OSError):
        return None


def between(following: NextAfter, after: datetime, until: datetime) -> Iterator[datetime]:
    """Fires later than `after`, up to and with `until`."""
    fire = following(after)
    while fire is not None and fire <= until:
        yield fire
        fire = following(fire)


def last(following: NextAfter, after: datetime, until: datetime, most: int) -> list[datetime]:
    """The last of those, `most` at the most: looked for from the end, since there may be very many."""
    span = _FIRST_SPAN
    while True:
        since = max(after, until - span)
        found = list(between(following, since, until))
        if len(found) >= most or since == after:
            return found[-most:]
        span *= _GROWTH


def fire_of(schedule_id: str, timing: Timing, fire_at: datetime) -> Fire:
    """A fire with its jitter, which whoever asks gets the same."""
    if not timing.jitter:
        return Fire(fire_at, fire_at)
    digest = sha256(f"{schedule_id}\0{fire_at.isoformat()}".encode()).digest()
    return Fire(fire_at, fire_at + int.from_bytes(digest[:8], "big") * (timing.jitter // MICROSECOND) // 2**64 * MICROSECOND)


@lru_cache(maxsize=4096)
def _cron(expression: str, timezone: str) -> Cron:
    return Cron(expression, timezone)
