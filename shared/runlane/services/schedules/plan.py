"""What a pass makes of a schedule: arithmetic on values, no clock and no storage."""

from __future__ import annotations

from datetime import datetime, timedelta

from runlane.domain.schedule import Timing
from runlane.ports.schedules import DueSchedule, Plan, Skipped
from runlane.services.schedules.fires import NextAfter, between, fire_of, last, readable

MOST_CAUGHT_UP = 100
AGAIN_AFTER = timedelta(minutes=1)
"""When a schedule that this release cannot read is looked at again, perhaps by one that can; and one whose runs the database refuses."""
_STRAYED = timedelta(minutes=6)
"""How far past the look-ahead nothing can be decided but by a clock that went ahead."""


def plan(due: DueSchedule, look_ahead: timedelta) -> Plan:
    """The fires to make now: of those missed what `catch_up` says, and all within the look-ahead.

    A schedule whose runs have a singleton key has one fire ahead at most: it takes its place behind the active run of the key, which it
    would lose to the next one.
    """
    due, following = _on_time(due, look_ahead), readable(due.timing)
    if due.timing is None or following is None:
        return postponed(due, look_ahead)
    missed, skipped = _missed(due, due.timing, following)
    until = max(due.decided_until, due.now)
    ahead: list[datetime] = []
    if not due.holds_key:
        ahead = list(between(following, until, due.now + look_ahead))
        until = max(until, due.now + look_ahead)
    elif due.decided_until <= due.now:
        ahead = [fire for fire in (following(until),) if fire is not None and fire <= due.now + look_ahead]
        until = ahead[0] if ahead else until
    upcoming = following(until)
    look_at = None if upcoming is None else upcoming - look_ahead
    if look_at is not None and due.holds_key:
        look_at = max(look_at, until)
    fires = tuple(fire_of(due.schedule_id, due.timing, fire) for fire in (*missed, *ahead))
    return Plan(due.schedule_id, due.version, until, look_at, fires, skipped)


def postponed(due: DueSchedule, look_ahead: timedelta) -> Plan:
    """To look at it again in a minute, with nothing decided till then."""
    due = _on_time(due, look_ahead)
    return Plan(due.schedule_id, due.version, due.decided_until, due.now + AGAIN_AFTER, is_unreadable=readable(due.timing) is None)


def passed_over(due: DueSchedule) -> Skipped | None:
    """The fires of a timing that is no more, which nobody made."""
    following = readable(due.timing)
    first = None if following is None else following(due.decided_until)
    return None if first is None or first > due.now else Skipped(first, due.now)


def _on_time(due: DueSchedule, look_ahead: timedelta) -> DueSchedule:
    """Decided until now, if a clock that went ahead has decided further than any pass could: else it fired no more until that time."""
    return due._replace(decided_until=due.now) if due.decided_until > due.now + look_ahead + _STRAYED else due


def _missed(due: DueSchedule, timing: Timing, following: NextAfter) -> tuple[list[datetime], Skipped | None]:
    first = following(due.decided_until)
    if first is None or first > due.now:
        return [], None
    most = {"latest": 1, "all": MOST_CAUGHT_UP, "skip": 0}[timing.catch_up]
    kept = last(following, due.decided_until, due.now, most) if most else []
    if kept and kept[0] == first:
        return kept, None
    return kept, Skipped(first, kept[0] if kept else due.now)
