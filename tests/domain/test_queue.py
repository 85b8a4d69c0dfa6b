from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from runlane.domain.errors import ConfigurationError
from runlane.domain.queue import LARGEST_COUNT, Queue, Throttle
from tests.domain.strategies import queues


@given(queues)
def test_a_policy_survives_json_and_gives_the_same_queue_back(queue: Queue) -> None:
    stored = json.loads(json.dumps(queue.policy()))
    assert Queue.from_policy(queue.name, stored) == queue


@given(queues, queues)
def test_queues_are_equal_exactly_when_their_policies_are(one: Queue, other: Queue) -> None:
    assert (one == other) == (one.policy() == other.policy())
    assert one != other or hash(one) == hash(other)


@given(queues)
def test_a_queue_is_bounded_when_it_has_a_limit(queue: Queue) -> None:
    assert queue.is_bounded == bool(queue.concurrency_limit or queue.total_limit)


def test_a_plain_queue_has_the_documented_defaults() -> None:
    assert Queue("main").policy() == {
        "concurrency_limit": None,
        "total_limit": None,
        "dispatch_timeout": None,
        "dispatch_window": 1000,
        "throttle": None,
    }
    assert not Queue("main").default
    assert Throttle(1, "1s").burst == 0


def test_a_policy_of_an_older_release_takes_defaults_for_what_it_lacks() -> None:
    assert Queue.from_policy("main", {"concurrency_limit": 1}) == Queue("main", concurrency_limit=1)


def test_durations_are_kept_as_timedelta() -> None:
    queue = Queue("main", dispatch_timeout="2m", throttle=Throttle(5, "1s"))
    assert queue.dispatch_timeout == timedelta(minutes=2)
    assert queue.throttle is not None
    assert queue.throttle.period == timedelta(seconds=1)


def test_being_the_default_is_no_part_of_the_policy() -> None:
    assert Queue("main", default=True) == Queue("main")


def test_a_wrong_queue_lists_every_fault_and_names_itself() -> None:
    wrong: Any = 5
    with pytest.raises(ConfigurationError) as caught:
        Queue("a:b", concurrency_limit=0, total_limit=-1, dispatch_timeout="soon", dispatch_window=0, throttle=wrong)
    assert len(caught.value.faults) == 6
    assert all(fault.startswith("queue 'a:b': ") for fault in caught.value.faults)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", LARGEST_COUNT + 1])
@pytest.mark.parametrize("option", ["concurrency_limit", "total_limit", "dispatch_window"])
def test_limits_are_whole_numbers_from_one(option: str, value: Any) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(ConfigurationError, match=option):
        Queue("main", **options)


def test_a_dispatch_timeout_of_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="dispatch_timeout: is zero"):
        Queue("main", dispatch_timeout="0s")


def test_a_wrong_throttle_lists_every_fault() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Throttle(0, "0s", burst=-1)
    assert len(caught.value.faults) == 3


def test_a_burst_worth_more_than_a_century_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="throttle burst: 36526 at 1 in 1d is worth more than 100 years"):
        Throttle(1, "1d", burst=36_526)
    assert Throttle(1, "1d", burst=36_525).burst == 36_525


def test_a_queue_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Queue("main").name = "other"  # type: ignore[misc]
