"""How an attempt ended, as a test looks at it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from runlane.domain.outcome import Failure, OutcomeKind, Settlement
from runlane.domain.run import Status, Verb, transition

_VERBS = {
    OutcomeKind.SUCCEEDED: Verb.SUCCEED,
    OutcomeKind.FAILED: Verb.FAIL,
    OutcomeKind.RETRY: Verb.RETRY,
    OutcomeKind.RELEASED: Verb.RELEASE,
    OutcomeKind.HANDED_BACK: Verb.HAND_BACK,
}


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What the run became. Exactly one of the five predicates holds.

    result: what is stored, as JSON reads it back: a model that was returned is a dict here. None unless `succeeded`.
    delay: until the run is due again, with `released` and `retrying`.
    reason: given with a release.
    failure: code, type, message and traceback as they are stored, with `retrying` and `failed`.
    error: what the handler raised, if it did.
    """

    status: Status
    result: Any = None
    delay: timedelta | None = None
    reason: str | None = None
    failure: Failure | None = None
    error: BaseException | None = None

    @property
    def succeeded(self) -> bool:
        return self.status is Status.SUCCEEDED

    @property
    def released(self) -> bool:
        return self.status is Status.RELEASED

    @property
    def retrying(self) -> bool:
        """The attempt failed, and there will be another after `delay`."""
        return self.status is Status.RETRYING

    @property
    def failed(self) -> bool:
        """The run failed: no attempt was left, or none could help."""
        return self.status is Status.FAILED

    @property
    def cancelled(self) -> bool:
        return self.status is Status.CANCELLED

    def result_or_raise(self) -> Any:
        """The result; else what the handler raised, or an AssertionError that says what happened instead."""
        if self.succeeded:
            return self.result
        if self.error is not None:
            raise self.error
        raise AssertionError(f"the run did not succeed: {self}")

    def __str__(self) -> str:
        words = [str(self.status)]
        if self.succeeded:
            words.append(repr(self.result))
        if self.delay is not None:
            words.append(f"for {self.delay.total_seconds():g} s")
        if self.reason:
            words.append(f"({self.reason})")
        if self.failure is not None:
            words.append(f"[{self.failure.code}] {self.failure.type}: {self.failure.message}")
        return " ".join(words)


def outcome_of(settlement: Settlement, status: Status, error: BaseException | None) -> TaskOutcome:
    is_kept = status in (Status.SUCCEEDED, Status.CANCELLED) and settlement.result is not None
    waits = status in (Status.RELEASED, Status.RETRYING)
    return TaskOutcome(
        status,
        result=json.loads(settlement.result) if is_kept and settlement.result is not None else None,
        delay=settlement.delay if waits else None,
        reason=settlement.reason,
        failure=settlement.failure,
        error=error,
    )


def status_after(settlement: Settlement, *, cancellation_requested: bool) -> Status:
    """What the transition table makes of it."""
    begun = Status.CANCELLATION_REQUESTED if cancellation_requested else Status.RUNNING
    found = transition(begun, _VERBS[settlement.kind])
    if found is None:
        raise AssertionError(f"{begun} has no way on by {settlement.kind}")
    return found
