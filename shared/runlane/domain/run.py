"""A run's statuses, and the one transition table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Status(StrEnum):
    QUEUED = "queued"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    RETRYING = "retrying"
    RELEASED = "released"
    CANCELLATION_REQUESTED = "cancellation_requested"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_waiting(self) -> bool:
        return self in WAITING

    @property
    def is_active(self) -> bool:
        return self in ACTIVE

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


WAITING = frozenset({Status.QUEUED, Status.SCHEDULED, Status.RETRYING, Status.RELEASED})
ACTIVE = frozenset({Status.RUNNING, Status.CANCELLATION_REQUESTED})
TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


class Verb(StrEnum):
    """What is done to a run. Whether it may be done *now* (due, lease held, lease expired) is the statement's guard."""

    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    RELEASE = "release"
    CANCEL = "cancel"
    EXPIRE_START = "expire_start"
    TIME_OUT = "time_out"
    """`finish_timeout` has passed."""
    RECOVER_RETRY = "recover_retry"
    RECOVER_FAIL = "recover_fail"
    HAND_BACK = "hand_back"
    """Claimed but not started: the attempt does not count."""
    RESCHEDULE = "reschedule"
    """Given another due time, in the future."""


_TABLE: dict[tuple[Status, Verb], Status] = {
    # Waiting. Only a run that never started can miss its start.
    **{(status, Verb.CLAIM): Status.RUNNING for status in WAITING},
    **{(status, Verb.CANCEL): Status.CANCELLED for status in WAITING},
    # One that waits when its finish time-out passes would have nobody to stop it later.
    **{(status, Verb.TIME_OUT): Status.CANCELLED for status in WAITING},
    (Status.QUEUED, Verb.RESCHEDULE): Status.SCHEDULED,
    **{(status, Verb.RESCHEDULE): status for status in WAITING - {Status.QUEUED}},
    (Status.QUEUED, Verb.EXPIRE_START): Status.CANCELLED,
    (Status.SCHEDULED, Verb.EXPIRE_START): Status.CANCELLED,
    # Running.
    (Status.RUNNING, Verb.SUCCEED): Status.SUCCEEDED,
    (Status.RUNNING, Verb.FAIL): Status.FAILED,
    (Status.RUNNING, Verb.RETRY): Status.RETRYING,
    (Status.RUNNING, Verb.RELEASE): Status.RELEASED,
    (Status.RUNNING, Verb.CANCEL): Status.CANCELLATION_REQUESTED,
    (Status.RUNNING, Verb.TIME_OUT): Status.CANCELLATION_REQUESTED,
    (Status.RUNNING, Verb.RECOVER_RETRY): Status.RETRYING,
    (Status.RUNNING, Verb.RECOVER_FAIL): Status.FAILED,
    (Status.RUNNING, Verb.HAND_BACK): Status.QUEUED,
    # Asked to stop: nothing leads back to waiting. A second cancel is refused, so that it leaves no second event.
    (Status.CANCELLATION_REQUESTED, Verb.SUCCEED): Status.CANCELLED,
    (Status.CANCELLATION_REQUESTED, Verb.FAIL): Status.FAILED,
    (Status.CANCELLATION_REQUESTED, Verb.RETRY): Status.FAILED,
    (Status.CANCELLATION_REQUESTED, Verb.RELEASE): Status.CANCELLED,
    (Status.CANCELLATION_REQUESTED, Verb.RECOVER_RETRY): Status.CANCELLED,
    (Status.CANCELLATION_REQUESTED, Verb.RECOVER_FAIL): Status.CANCELLED,
    (Status.CANCELLATION_REQUESTED, Verb.HAND_BACK): Status.CANCELLED,
}

TRANSITIONS: Mapping[tuple[Status, Verb], Status] = MappingProxyType(_TABLE)
"""Every permitted transition; what is missing is refused."""


def transition(status: Status, verb: Verb) -> Status | None:
    """The status that `verb` leads to; None when it is refused and nothing may be written."""
    return TRANSITIONS.get((status, verb))


class Source(StrEnum):
    """What made a run."""

    TRIGGER = "trigger"
    RUN_NOW = "run_now"
    MANUAL_RETRY = "manual_retry"
    RERUN = "rerun"
    SCHEDULE = "schedule"


class TriggerOutcome(StrEnum):
    CREATED = "created"
    DUPLICATE = "duplicate"
    SINGLETON_ACTIVE = "singleton_active"
    DEBOUNCED = "debounced"
    BATCHED = "batched"
    RATE_LIMITED = "rate_limited"
