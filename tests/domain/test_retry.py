from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runlane.domain.durations import LONGEST, ZERO
from runlane.domain.errors import ConfigurationError, ContractError
from runlane.domain.retry import Exponential, Fixed, Retry, RetryAfter, retry_delay
from tests.domain.strategies import durations

failures = st.integers(min_value=1, max_value=10**6)
generators = st.integers(min_value=0, max_value=2**32).map(Random)
bounds = st.tuples(durations, durations).map(sorted)


def exponential(base: timedelta, longest: timedelta, *, jitter: bool) -> Retry:
    return Retry(backoff=Exponential(base, max=longest, jitter=jitter))


@given(bounds, failures, generators)
@example([timedelta(microseconds=1), LONGEST], 10**6, Random(0))
@example([LONGEST, LONGEST], 10**6, Random(0))
@example([ZERO, ZERO], 10**6, Random(0))
def test_jitter_stays_between_half_of_the_delay_and_all_of_it(pair: list[timedelta], count: int, rng: Random) -> None:
    full = retry_delay(exponential(*pair, jitter=False), count, rng)
    jittered = retry_delay(exponential(*pair, jitter=True), count, rng)
    assert full / 2 - timedelta(microseconds=1) <= jittered <= full <= pair[1]


@given(bounds, failures, generators)
def test_without_jitter_the_delay_never_shrinks_and_never_passes_its_cap(pair: list[timedelta], count: int, rng: Random) -> None:
    retry = exponential(*pair, jitter=False)
    assert pair[0] <= retry_delay(retry, count, rng) <= retry_delay(retry, count + 1, rng) <= pair[1]


@given(bounds.filter(lambda pair: pair[0] > ZERO), generators)
def test_a_million_failures_wait_for_the_cap_and_do_not_overflow(pair: list[timedelta], rng: Random) -> None:
    assert retry_delay(exponential(*pair, jitter=False), 10**6, rng) == pair[1]


def test_the_default_doubles_from_one_second_to_five_minutes() -> None:
    retry = Retry(backoff=Exponential("1s", max="5m", jitter=False))
    waits = [retry_delay(retry, count, Random(0)).total_seconds() for count in range(1, 12)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert Retry() == Retry(max_attempts=3, backoff=Exponential("1s", max="5m", jitter=True))


def test_jitter_spreads_the_herd() -> None:
    waits = {retry_delay(Retry(), 5, Random(seed)) for seed in range(100)}
    assert len(waits) > 90


@given(st.integers(), generators)
def test_the_same_seed_gives_the_same_delay(count: int, rng: Random) -> None:
    state = rng.getstate()
    first = retry_delay(Retry(), count, rng)
    rng.setstate(state)
    assert retry_delay(Retry(), count, rng) == first


@given(durations, failures, generators)
def test_a_fixed_delay_is_the_same_after_every_failure(delay: timedelta, count: int, rng: Random) -> None:
    assert retry_delay(Retry(backoff=Fixed(delay)), count, rng) == delay


def test_a_backoff_function_gets_the_number_of_failures() -> None:
    assert retry_delay(Retry(backoff=lambda count: f"{count * 10}s"), 3, Random(0)) == timedelta(seconds=30)


@pytest.mark.parametrize("broken", [lambda _: 1 / 0, lambda _: None, lambda _: "soon", lambda _: timedelta(-1), lambda: "1s"])
def test_a_broken_backoff_function_is_replaced_by_the_default_backoff(broken: Any) -> None:
    assert timedelta(seconds=0.5) <= retry_delay(Retry(backoff=broken), 1, Random(0)) <= timedelta(seconds=1)


def test_a_wrong_retry_lists_every_fault() -> None:
    wrong: Any = "1s"
    with pytest.raises(ConfigurationError) as caught:
        Retry(max_attempts=0, backoff=wrong)
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize("attempts", [0, -1, 32_768, True, 1.5, "3", None])
def test_max_attempts_is_a_whole_number_from_one(attempts: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_attempts"):
        Retry(max_attempts=attempts)


def test_a_cap_below_the_base_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="shorter than the base"):
        Exponential("1h")


def test_a_wrong_backoff_lists_every_fault() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Exponential("soon", max="later")
    assert len(caught.value.faults) == 2
    with pytest.raises(ConfigurationError, match="backoff delay"):
        Fixed("-1s")


def test_retry_after_refuses_a_malformed_delay_where_it_is_raised() -> None:
    assert RetryAfter("2m").delay == timedelta(minutes=2)
    with pytest.raises(ContractError, match="RetryAfter delay"):
        RetryAfter("soon")
