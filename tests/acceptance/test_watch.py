"""A watch outlasts an outage that begins after its first look, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from runlane.cli.watch import View, watch
from runlane.domain.errors import ContractError, UnavailableError

OUTAGE = UnavailableError("storage_unavailable", "the database \x1b is away")


def view(*looks: str | Exception) -> View[str]:
    left: Iterator[str | Exception] = iter(looks)

    def read() -> str:
        look = next(left, KeyboardInterrupt)
        if isinstance(look, str):
            return look
        raise look

    return View(read=read, screen=str, lines=str.split, document=lambda seen: {"seen": seen}, is_over=lambda seen: seen == "over")


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[list[str], list[str]]]:
    def run(*looks: str | Exception, as_json: bool = False) -> tuple[list[str], list[str]]:
        watch(view(*looks), timedelta(), as_json=as_json)
        written = capsys.readouterr()
        return written.out.splitlines(), written.err.splitlines()

    return run


def test_only_what_is_new_is_written(look: Callable[..., tuple[list[str], list[str]]]) -> None:
    assert look("a b", "a b", "a c", "b") == (["a", "b", "c", "b"], [])
    assert look("a", "a", "b", as_json=True)[0] == ['{"seen": "a"}', '{"seen": "b"}']


def test_a_watch_ends_when_nothing_can_change_any_more(look: Callable[..., tuple[list[str], list[str]]]) -> None:
    assert look("a", "over", ContractError("x", "was read once too often"))[0] == ["a", "over"]


def test_an_outage_is_told_once_and_waited_for(look: Callable[..., tuple[list[str], list[str]]]) -> None:
    told = r"the database \x1b is away; trying again"
    assert look("a", OUTAGE, OUTAGE, "b", OUTAGE) == (["a", "b"], [told, told])


@pytest.mark.parametrize("looks", [(OUTAGE,), ("a", ContractError("gone", "gone"))])
def test_what_would_not_pass_ends_the_watch(look: Callable[..., tuple[list[str], list[str]]], looks: tuple[str | Exception, ...]) -> None:
    with pytest.raises((UnavailableError, ContractError)):
        look(*looks)
