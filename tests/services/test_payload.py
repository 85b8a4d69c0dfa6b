from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel, Field

from runlane.domain.errors import ContractError, PayloadError
from runlane.domain.task import task
from runlane.services.payload import MAX_BYTES, PayloadCodec, canonical_hash
from tests.services.tasks import Order, ship


class Loose(BaseModel):
    values: dict[str, Any] = {}
    ratio: float = 0.0


class Renamed(BaseModel):
    number: int = Field(alias="orderNumber")


class Forgetful(BaseModel):
    number: int = Field(exclude=True)


@task("loose")
def loose(payload: Loose) -> None: ...


@task("renamed")
def renamed(payload: Renamed) -> None: ...


@task("forgetful")
def forgetful(payload: Forgetful) -> None: ...


codec = PayloadCodec()


def fields(task_: Any, payload: Any) -> list[dict[str, str]]:
    with pytest.raises(PayloadError) as caught:
        codec.encode(task_, payload)
    found: list[dict[str, str]] = caught.value.meta["fields"]
    return found


def test_a_payload_may_be_given_as_the_model_or_as_plain_values() -> None:
    assert codec.encode(ship, Order(number=1)) == codec.encode(ship, {"number": 1}) == '{"number":1,"note":null}'


def test_an_aliased_payload_survives_the_round_trip() -> None:
    assert codec.decode(renamed, codec.encode(renamed, {"orderNumber": 3})) == Renamed(orderNumber=3)


def test_every_misfit_is_named_by_its_path() -> None:
    assert fields(ship, {"number": "x", "note": 3}) == [
        {"path": "number", "message": "Input should be a valid integer, unable to parse string as an integer"},
        {"path": "note", "message": "Input should be a valid string"},
    ]


def test_a_payload_that_could_not_be_read_back_is_refused_at_once() -> None:
    assert fields(forgetful, {"number": 1})[0]["path"] == "number"


def test_nul_is_refused_with_its_path() -> None:
    assert [fault["path"] for fault in fields(loose, {"values": {"a": ["x", "\0"], "k\0": 1}})] == ["values.a.1", "values.k\\x00"]


def test_what_only_looks_like_nul_is_kept() -> None:
    assert codec.decode(loose, codec.encode(loose, {"values": {"a": "\\u0000 null NaN"}})).values == {"a": "\\u0000 null NaN"}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_cannot_express_is_refused(number: float) -> None:
    assert fields(loose, {"ratio": number})[0]["path"] == "ratio"
    assert fields(loose, {"values": {"deep": [number]}})[0]["path"] == "values.deep.0"


def test_a_lone_surrogate_is_refused() -> None:
    assert fields(loose, Loose.model_construct(values={"a": "\ud800"}, ratio=1.0))[0]["path"] == "values.a"


def test_a_value_that_is_no_json_is_refused() -> None:
    assert "object" in fields(loose, {"values": {"a": object()}})[0]["message"]


def test_a_payload_over_the_limit_is_refused_and_never_cut() -> None:
    codec.encode(ship, Order(number=1, note="x" * (MAX_BYTES - 24)))
    with pytest.raises(ContractError) as caught:
        codec.encode(ship, Order(number=1, note="é" * (MAX_BYTES // 2)))
    assert (caught.value.code, caught.value.meta["limit"]) == ("payload_too_large", MAX_BYTES)


@pytest.mark.parametrize(
    ("value", "text"), [(None, None), (3, "3"), ([None], "[null]"), ({"a": Order(number=1)}, '{"a":{"number":1,"note":null}}')]
)
def test_a_result_is_stored_as_json(value: Any, text: str | None) -> None:
    assert codec.encode_result(value) == text


class Measured(BaseModel):
    value: float | None = None


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        Measured(value=math.nan),
        [{"a": Measured(value=math.inf)}],
        {"a": "\0"},
        object(),
        "\ud800",
        [10**5000],
        {"a": [-(10**4300)]},
    ],
)
def test_a_result_that_postgres_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ContractError) as caught:
        codec.encode_result(value)
    assert caught.value.code == "result_invalid"


def test_a_result_over_the_limit_is_refused() -> None:
    with pytest.raises(ContractError) as caught:
        codec.encode_result("x" * MAX_BYTES)
    assert caught.value.code == "result_too_large"


def test_equal_payloads_have_equal_hashes() -> None:
    assert canonical_hash('{"a": 1, "b": [2]}') == canonical_hash('{"b":[2],"a":1}') != canonical_hash('{"a":1,"b":[3]}')


def test_a_result_with_the_longest_number_or_a_long_row_of_digits_in_text_is_kept() -> None:
    for value in (10**4300 - 1, "1" * 5000):
        assert codec.encode_result(value) is not None


@pytest.mark.parametrize("depth", [300, None])
def test_a_payload_too_deep_or_circular_is_refused(depth: int | None) -> None:
    value: list[Any] = []
    if depth is None:
        value.append(value)
    for _ in range(depth or 0):
        value = [value]
    with pytest.raises(PayloadError):
        codec.encode(loose, Loose(values={"a": value}))
