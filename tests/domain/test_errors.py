from __future__ import annotations

import pickle

import pytest

from runlane.domain.errors import (
    ConfigurationError,
    ConflictError,
    ContractError,
    InvariantError,
    NotFoundError,
    PayloadError,
    RunlaneError,
    UnavailableError,
)

FIELDS = [{"path": "user.id", "message": "is missing"}]


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [(ContractError, False), (NotFoundError, False), (InvariantError, False), (ConflictError, True), (UnavailableError, True)],
)
def test_each_kind_says_whether_trying_again_may_help(kind: type[RunlaneError], retryable: bool) -> None:
    error = kind("some_code", "something is wrong")
    assert error.retryable is retryable
    assert kind("some_code", "something is wrong", retryable=not retryable).retryable is not retryable
    assert str(error) == error.message == "something is wrong"
    assert error.meta == {}


def test_a_configuration_error_lists_every_fault() -> None:
    error = ConfigurationError(["one is wrong", "two is wrong"])
    assert error.faults == ("one is wrong", "two is wrong")
    assert str(error) == "2 faults:\n- one is wrong\n- two is wrong"
    assert error.meta == {"faults": ["one is wrong", "two is wrong"]}


def test_a_single_fault_is_the_message() -> None:
    assert str(ConfigurationError("one is wrong")) == "one is wrong"


def test_no_faults_raise_nothing() -> None:
    ConfigurationError.raise_if(iter(()))
    with pytest.raises(ConfigurationError, match="wrong"):
        ConfigurationError.raise_if(fault for fault in ["wrong"])


def test_a_payload_error_names_its_fields() -> None:
    error = PayloadError("the payload does not fit", FIELDS)
    assert isinstance(error, ContractError)
    assert error.code == "payload_invalid"
    assert error.meta == {"fields": FIELDS}


@pytest.mark.parametrize(
    "error",
    [
        ConflictError("lease_lost", "the lease is lost", retryable=False, meta={"run_id": "1"}),
        ConfigurationError(["one", "two"], code="queue_mismatch"),
        PayloadError("the payload does not fit", FIELDS),
    ],
)
def test_an_error_crosses_a_process_border_whole(error: RunlaneError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
