"""The names of what can happen to a run, as its history keeps them."""

from __future__ import annotations

from enum import StrEnum


class EventType(StrEnum):
    CREATED = "run.created"
    DISPATCHED = "run.dispatched"
    DISPATCH_EXPIRED = "run.dispatch_expired"
    CLAIMED = "run.claimed"
    SUCCEEDED = "run.succeeded"
    FAILED = "run.failed"
    RETRY_SCHEDULED = "run.retry_scheduled"
    RELEASED = "run.released"
    STEP_FINISHED = "run.step_finished"
    LEASE_EXPIRED = "run.lease_expired"
    RESULT_REFUSED = "run.result_refused"
    CANCELLATION_REQUESTED = "run.cancellation_requested"
    CANCELLED = "run.cancelled"
    RESCHEDULED = "run.rescheduled"
    SKIPPED = "run.skipped"
