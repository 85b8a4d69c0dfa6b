"""Which event may follow which: what the transition table makes of a history."""

from __future__ import annotations

from collections.abc import Mapping

from runlane.domain.event import EventType
from runlane.domain.run import ACTIVE, TRANSITIONS, WAITING, Status, Verb

_OF_STATUS: Mapping[Status, EventType] = {
    Status.SUCCEEDED: EventType.SUCCEEDED,
    Status.FAILED: EventType.FAILED,
    Status.CANCELLED: EventType.CANCELLED,
    Status.RETRYING: EventType.RETRY_SCHEDULED,
    Status.RELEASED: EventType.RELEASED,
    Status.CANCELLATION_REQUESTED: EventType.CANCELLATION_REQUESTED,
    Status.RUNNING: EventType.CLAIMED,
}


def event_of(verb: Verb, becomes: Status) -> EventType:
    """What is written when `verb` has led to `becomes`."""
    is_moved = verb is Verb.RESCHEDULE or (verb is Verb.HAND_BACK and becomes is Status.QUEUED)
    return EventType.RESCHEDULED if is_moved else _OF_STATUS[becomes]


def _followers() -> frozenset[tuple[EventType, EventType]]:
    leads: dict[EventType, set[Status]] = {
        EventType.CREATED: {Status.QUEUED, Status.SCHEDULED},
        # These do not change the status.
        EventType.DISPATCHED: set(WAITING),
        EventType.DISPATCH_EXPIRED: set(WAITING),
    }
    for (_, verb), becomes in TRANSITIONS.items():
        leads.setdefault(event_of(verb, becomes), set()).add(becomes)
    pairs = {
        (before, event_of(verb, becomes))
        for (status, verb), becomes in TRANSITIONS.items()
        for before, statuses in leads.items()
        if status in statuses
        # A claim takes a dispatch row; what recovers a run says first that its lease has expired.
        and (verb is not Verb.CLAIM or before is EventType.DISPATCHED)
    }
    for before, statuses in leads.items():
        if statuses & WAITING and before is not EventType.DISPATCHED:
            pairs.add((before, EventType.DISPATCHED))
        if statuses & ACTIVE:
            pairs.add((before, EventType.LEASE_EXPIRED))
    pairs.add((EventType.DISPATCHED, EventType.DISPATCH_EXPIRED))
    recovered = {event_of(verb, becomes) for (_, verb), becomes in TRANSITIONS.items() if verb in (Verb.RECOVER_RETRY, Verb.RECOVER_FAIL)}
    return frozenset(pairs | {(EventType.LEASE_EXPIRED, after) for after in recovered})


FOLLOWERS = _followers()
"""Every permitted pair of neighbours in a history, refused results left out: they change nothing and may come at any time."""
