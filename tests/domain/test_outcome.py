from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.durations import ZERO
from runlane.domain.errors import RESULT_TOO_LARGE, ContractError, PayloadError, UnavailableError
from runlane.domain.ids import RunId
from runlane.domain.outcome import (
    MESSAGE_BYTES,
    TRACEBACK_BYTES,
    AttemptEnd,
    Counters,
    Failure,
    Lost,
    NotStarted,
    OutcomeKind,
    Raised,
    Released,
    Returned,
    Settlement,
    TimedOut,
    decide,
    is_retryable,
)
from runlane.domain.retry import Fixed, NonRetryable, Retry, RetryAfter

RUN = RunId("01900000-0000-7000-8000-000000000000")
RETRY = Retry(max_attempts=3, backoff=Fixed("10s"))
TEN_SECONDS = timedelta(seconds=10)

counters = st.builds(Counters, failures=st.integers(0, 40), max_attempts=st.integers(1, 40), attempt=st.just(0))
failed_ends = st.sampled_from([Raised(ValueError("no")), TimedOut(TEN_SECONDS), Lost()])
other_ends = st.sampled_from([Returned("1"), Returned(None), Released(ZERO), NotStarted()])


def settle(end: AttemptEnd, *, failures: int = 0, max_attempts: int = 3) -> Settlement:
    return decide(RUN, "token", end, Counters(failures, max_attempts), RETRY, Random(0))


def test_a_returned_value_succeeds() -> None:
    assert settle(Returned('{"a":1}')) == Settlement(RUN, "token", OutcomeKind.SUCCEEDED, result='{"a":1}')


def test_a_release_waits_without_a_failure() -> None:
    settlement = settle(Released(TEN_SECONDS, "not ready"), failures=2)
    assert settlement == Settlement(RUN, "token", OutcomeKind.RELEASED, delay=TEN_SECONDS, reason="not ready")


def test_a_claim_that_was_not_started_is_handed_back_with_its_reason() -> None:
    settlement = settle(NotStarted(TEN_SECONDS, "task_unknown"), failures=2)
    assert settlement == Settlement(RUN, "token", OutcomeKind.HANDED_BACK, delay=TEN_SECONDS, reason="task_unknown")


def test_an_exception_retries_after_the_backoff_while_attempts_are_left() -> None:
    for failures, kind in [(0, OutcomeKind.RETRY), (1, OutcomeKind.RETRY), (2, OutcomeKind.FAILED)]:
        settlement = settle(Raised(ValueError("no")), failures=failures)
        assert settlement.kind is kind
        assert settlement.delay == (TEN_SECONDS if kind is OutcomeKind.RETRY else None)
        assert settlement.failure is not None
        assert settlement.failure.message == "no"


@given(failed_ends, counters)
def test_a_run_ends_with_the_failure_that_uses_up_its_attempts_and_not_before(end: AttemptEnd, counted: Counters) -> None:
    settlement = decide(RUN, "token", end, counted, RETRY, Random(0))
    ends = settlement.final or settlement.kind is OutcomeKind.FAILED
    assert ends == (counted.failures + 1 >= counted.max_attempts)
    assert (settlement.delay is None) == ends
    assert settlement.failure is not None
    assert settlement.result is None


@given(other_ends, counters)
def test_what_is_no_failure_settles_alike_whatever_failed_before(end: AttemptEnd, counted: Counters) -> None:
    settlement = decide(RUN, "token", end, counted, RETRY, Random(0))
    assert settlement == settle(end)
    assert settlement.failure is None


@given(counters)
def test_only_a_lost_lease_carries_final(counted: Counters) -> None:
    for end in (Raised(ValueError()), TimedOut(ZERO), Returned(None), Released(ZERO), NotStarted()):
        assert not decide(RUN, "token", end, counted, RETRY, Random(0)).final


def test_a_lost_lease_is_one_failure_and_the_last_one_is_final() -> None:
    first, last = settle(Lost()), settle(Lost(), failures=2)
    assert (first.kind, first.delay, first.final) == (OutcomeKind.LEASE_EXPIRED, TEN_SECONDS, False)
    assert (last.kind, last.delay, last.final) == (OutcomeKind.LEASE_EXPIRED, None, True)
    assert last.failure is not None
    assert last.failure.code == "lease_expired"


def test_a_timed_out_attempt_is_a_retryable_failure() -> None:
    settlement = settle(TimedOut(timedelta(seconds=30)))
    assert settlement.kind is OutcomeKind.RETRY
    assert settlement.failure is not None
    assert settlement.failure.code == "timed_out"
    assert "30s" in settlement.failure.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NonRetryable("the account is closed"), "non_retryable"),
        (PayloadError("does not fit"), "payload_invalid"),
        (ContractError(RESULT_TOO_LARGE, "too large"), "result_too_large"),
    ],
)
def test_an_error_that_trying_again_cannot_mend_fails_at_once(error: Exception, code: str) -> None:
    settlement = settle(Raised(error))
    assert settlement.kind is OutcomeKind.FAILED
    assert settlement.failure is not None
    assert settlement.failure.code == code


def test_an_unavailable_database_in_a_handler_is_worth_another_attempt() -> None:
    assert is_retryable(UnavailableError("storage_unavailable", "gone"))
    assert is_retryable(SystemExit(1))


def test_retry_after_decides_the_delay_but_not_the_number_of_attempts() -> None:
    assert settle(Raised(RetryAfter("2m"))).delay == timedelta(minutes=2)
    assert settle(Raised(RetryAfter("2m")), failures=2).kind is OutcomeKind.FAILED


@given(st.text(), st.text())
def test_any_text_makes_a_failure_that_can_be_stored(message: str, traceback: str) -> None:
    failure = Failure("code", "Type", message * 50, traceback * 500)
    assert failure.traceback is not None
    assert len(failure.message.encode()) <= MESSAGE_BYTES
    assert len(failure.traceback.encode()) <= TRACEBACK_BYTES
    assert "\0" not in failure.message + failure.traceback


@given(st.text())
def test_making_a_failure_of_a_stored_one_changes_nothing(message: str) -> None:
    once = Failure("code", "Type", message * 50, message * 500)
    assert Failure(once.code, once.type, once.message, once.traceback) == once


def test_a_traceback_keeps_its_end_which_names_the_culprit() -> None:
    failure = Failure("code", "Type", "x", "beginning " + "." * 10_000 + " culprit")
    assert failure.traceback is not None
    assert failure.traceback.startswith("…")
    assert failure.traceback.endswith(" culprit")


def test_a_failure_of_an_exception_names_its_type_and_shows_where_it_came_from() -> None:
    failure = Failure.of(_raised(KeyError("id")))
    assert (failure.code, failure.type, failure.message) == ("handler_error", "KeyError", "'id'")
    assert failure.traceback is not None
    assert "_raised" in failure.traceback
    assert Failure.of(PayloadError("no")).type == "runlane.domain.errors.PayloadError"


def test_a_traceback_is_left_out_on_request() -> None:
    settlement = decide(RUN, "token", Raised(ValueError()), Counters(0, 3), RETRY, Random(0), store_traceback=False)
    assert settlement.failure is not None
    assert settlement.failure.traceback is None


def test_an_exception_whose_text_is_broken_is_stored_all_the_same() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "no readable message" in Failure.of(Broken()).message


def test_endless_recursion_is_stored_in_bounds() -> None:
    def recurse(depth: int) -> int:
        return recurse(depth + 1) + 1

    with pytest.raises(RecursionError) as caught:
        recurse(0)
    failure = Failure.of(caught.value)
    assert failure.traceback is not None
    assert failure.traceback.rstrip().endswith(failure.message)


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_a_message_or_a_backoff_that_exits_is_settled_all_the_same() -> None:
    class Leaving(Exception):
        def __str__(self) -> str:
            raise SystemExit

    def leave(failures: int) -> timedelta:
        raise KeyboardInterrupt

    settlement = decide(RUN, "token", Raised(Leaving()), Counters(0, 3), Retry(max_attempts=3, backoff=leave), Random(0))
    assert settlement.kind is OutcomeKind.RETRY
    assert "has no readable message" in str(settlement.failure)
    assert settlement.delay is not None
    assert settlement.delay > ZERO
