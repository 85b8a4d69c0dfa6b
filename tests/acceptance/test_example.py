"""The payload that `runlane dev` shows is one that the task takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter

from runlane.cli import dev_session
from runlane.cli.example import example_payload
from runlane.domain.task import task


class Size(StrEnum):
    SMALL = "small"


class Line(BaseModel):
    text: str
    count: int = Field(alias="howMany", gt=2)


class Order(BaseModel):
    lines: list[Line] = Field(min_length=1)
    size: Size
    kind: Literal["new"]
    price: Decimal = Field(ge=5)
    discount: float = Field(lt=0)
    note: str | None
    is_gift: bool
    comment: str = "none"


ORDER = {
    "lines": [{"text": "example", "howMany": 3}],
    "size": "small",
    "kind": "new",
    "price": 5,
    "discount": -1,
    "note": "example",
    "is_gift": True,
}
CODE = Annotated[str, Field(pattern="^[A-Z]{3}$")]


def refuse(value: str) -> str:
    raise KeyError(value)


def test_required_fields_have_plain_values() -> None:
    assert json.loads(example_payload(Order) or "") == ORDER


@pytest.mark.parametrize("wanted", [datetime, date, time, timedelta, UUID, int, bool, None, Any, dict[str, int], tuple[int, str], Size])
def test_every_plain_type_has_an_example(wanted: Any) -> None:
    text = example_payload(wanted)
    assert text
    TypeAdapter(wanted).validate_json(text)


@pytest.mark.parametrize("bounds", [{"min_length": 20}, {"max_length": 2}, {"examples": ["acme"]}], ids=str)
def test_the_bounds_of_a_text_are_kept(bounds: dict[str, Any]) -> None:
    wanted = Annotated[str, Field(**bounds)]
    TypeAdapter(wanted).validate_json(example_payload(wanted) or "")


@pytest.mark.parametrize(
    "wanted", [CODE, Annotated[str, AfterValidator(refuse)], Callable[[], int]], ids=["pattern", "validator", "no schema"]
)
def test_what_no_plain_value_satisfies_has_none(wanted: Any) -> None:
    assert example_payload(wanted) is None


def test_the_first_task_that_has_an_example_is_shown() -> None:
    @task("codes.check")
    def check(payload: CODE) -> None: ...

    @task("lines.print")
    def show(payload: Line) -> None: ...

    assert """runlane trigger lines.print '{"text": "example", "howMany": 3}' --wait 30s""" in dev_session._next({"c": check, "s": show})
    assert "runlane trigger codes.check '{…}' --wait 30s" in dev_session._next({"c": check})
