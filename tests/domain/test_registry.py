from __future__ import annotations

import json

import pytest
from hypothesis import given

from runlane.domain.errors import ConfigurationError, NotFoundError
from runlane.domain.queue import Queue
from runlane.domain.registry import QueueRegistry, drift
from tests.domain.strategies import queues

MAIN = Queue("main", default=True)
SYNC = Queue("sync", concurrency_limit=1, dispatch_timeout="2m")


def test_a_registry_gives_its_queues_in_order_and_by_name() -> None:
    registry = QueueRegistry([SYNC, MAIN])
    assert list(registry) == [SYNC, MAIN]
    assert len(registry) == 2
    assert "sync" in registry
    assert "other" not in registry
    assert registry.named("sync") is SYNC
    assert registry.default is MAIN


def test_two_queues_of_one_name_and_two_defaults_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        QueueRegistry([MAIN, SYNC, Queue("sync", concurrency_limit=2), Queue("other", default=True)])
    names, defaults = caught.value.faults
    assert '"concurrency_limit": 1' in names
    assert '"concurrency_limit": 2' in names
    assert "'main', 'other'" in defaults


def test_the_same_queue_registered_twice_is_refused_even_if_it_is_equal() -> None:
    with pytest.raises(ConfigurationError, match="registered 2 times"):
        QueueRegistry([SYNC, SYNC])


def test_an_equal_definition_stands_for_the_registered_one() -> None:
    assert QueueRegistry([SYNC]).require(Queue("sync", concurrency_limit=1, dispatch_timeout="120s")) is SYNC


def test_an_unequal_definition_is_refused_with_both_policies() -> None:
    other = Queue("sync", concurrency_limit=5, dispatch_timeout="2m")
    with pytest.raises(ConfigurationError) as caught:
        QueueRegistry([SYNC]).require(other)
    assert caught.value.code == "queue_mismatch"
    assert json.dumps(SYNC.policy()) in caught.value.message
    assert json.dumps(other.policy()) in caught.value.message


def test_an_unregistered_queue_is_refused_with_its_policy_and_the_registered_names() -> None:
    with pytest.raises(ConfigurationError) as caught:
        QueueRegistry([MAIN]).require(SYNC)
    assert caught.value.code == "queue_unregistered"
    assert json.dumps(SYNC.policy()) in caught.value.message
    assert "'main'" in caught.value.message


def test_an_unknown_name_is_not_found_and_the_known_ones_are_listed() -> None:
    with pytest.raises(NotFoundError, match="'main', 'sync'") as caught:
        QueueRegistry([MAIN, SYNC]).named("snyc")
    assert caught.value.code == "queue_not_found"


def test_the_first_choice_wins_then_the_next_then_the_default() -> None:
    registry = QueueRegistry([MAIN, SYNC])
    assert registry.choose(SYNC, MAIN) is SYNC
    assert registry.choose(None, SYNC) is SYNC
    assert registry.choose(None, None) is MAIN


def test_no_choice_and_no_default_is_an_error_and_never_an_invented_queue() -> None:
    with pytest.raises(ConfigurationError) as caught:
        QueueRegistry([SYNC]).choose(None, None)
    assert caught.value.code == "queue_missing"
    with pytest.raises(ConfigurationError, match="mark one of none"):
        QueueRegistry([]).choose()


@given(queues, queues)
def test_drift_shows_both_policies_exactly_when_they_differ(code: Queue, stored: Queue) -> None:
    told = drift(code, stored)
    assert (told is None) == (code == stored)
    assert told is None or json.dumps(code.policy()) in told
    assert told is None or json.dumps(stored.policy()) in told


@given(queues)
def test_a_queue_read_back_from_storage_has_not_drifted(queue: Queue) -> None:
    assert drift(queue, Queue.from_policy(queue.name, queue.policy())) is None
