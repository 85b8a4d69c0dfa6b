"""Whatever stands on the command line: an exit code of the three, words on the standard error, and nothing that a terminal obeys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.acceptance.command import inside

NOBODY = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "RUNLANE_QUEUE_URL": "http://127.0.0.1:1/0/none"}
ODD = st.text(alphabet=st.sampled_from("a-=*$'\"\\;|&<>[]{}%\n\t \x1b\x07\x9b\u202e\ud800é"), max_size=12)
PLACES: tuple[Callable[[str], list[str]], ...] = (
    lambda odd: [odd],
    lambda odd: ["runs", odd],
    lambda odd: ["runs", "show", "--", odd],
    lambda odd: ["runs", "list", f"--{odd}"],
    lambda odd: ["runs", "list", "--status", odd],
    lambda odd: ["runs", "list", "--limit", odd],
    lambda odd: ["runs", "list", "--created-after", odd],
    lambda odd: ["runs", "list", "--app", odd],
    lambda odd: ["queues", "pause", "--", f"x{odd}"],
    lambda odd: ["queues", "stats", "--every", odd],
    lambda odd: ["trigger", "--", f"x{odd}"],
    lambda odd: ["trigger", "--delay", odd, "invoices.sync", '{"customer": "a"}'],
    lambda odd: ["trigger", "invoices.sync", f"{{{odd}"],
)
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(place=st.sampled_from(PLACES), odd=ODD)
@FEW
def test_odd_arguments_are_refused_in_clean_words(tmp_path: Path, place: Callable[[str], list[str]], odd: str) -> None:
    refused = inside(*place(odd), folder=tmp_path, **NOBODY)
    assert refused.code in (0, 1, 2)
    assert not set(refused.err + refused.out) & set("\x1b\x07\x9b\u202e\ud800\t")
    assert "Traceback" not in refused.err
    if refused.code:
        assert refused.err.startswith("error: ") or "Usage" in refused.out


@pytest.mark.parametrize("odd", ["\x1b[31m", "\u202e", "\ud800", "é"])
def test_a_refusal_of_an_odd_argument_is_a_document_of_plain_ascii(tmp_path: Path, odd: str) -> None:
    refused = inside("queues", "pause", "--json", "--", odd, folder=tmp_path, **NOBODY)
    assert refused.err.isascii()
    assert json.loads(refused.err)["error"]["code"] == "queue_not_found"
