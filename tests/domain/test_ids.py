from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.errors import ContractError
from runlane.domain.ids import MAX_LENGTH, parse_run_id, validate_key, validate_name

# Characters that Postgres and UTF-8 can store: no NUL, no surrogates.
storable = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
keys = st.text(storable, min_size=1, max_size=MAX_LENGTH)


@given(keys)
def test_any_storable_text_of_1_to_255_characters_is_a_key(key: str) -> None:
    assert validate_key(key, "tenant") == key


@given(keys.filter(lambda text: ":" not in text))
def test_a_name_is_a_key_without_colons(name: str) -> None:
    assert validate_name(name, "queue") == name


@given(keys, keys)
def test_a_name_with_a_colon_is_refused(left: str, right: str) -> None:
    with pytest.raises(ContractError) as caught:
        validate_name(f"{left[:100]}:{right[:100]}", "queue")
    assert caught.value.code == "name_invalid"
    assert "use '.', '-' or '_'" in caught.value.message


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("", "give 1 to 255 characters"),
        ("x" * 256, "give at most 255"),
        ("a\0b", "remove it"),
        ("a\ud800b", "give valid Unicode"),
        (None, "give a str"),
        (7, "give a str"),
    ],
)
def test_the_refusal_names_the_field_and_the_remedy(value: Any, remedy: str) -> None:
    for validate in (validate_key, validate_name):
        with pytest.raises(ContractError) as caught:
            validate(value, "singleton_key")
        assert caught.value.message.startswith("singleton_key: ")
        assert remedy in caught.value.message
        assert caught.value.meta == {"field": "singleton_key"}
        assert not caught.value.retryable


def test_length_is_counted_in_characters_not_bytes() -> None:
    assert validate_key("🜁" * 255, "tenant")


def test_the_refusal_of_a_huge_value_is_short() -> None:
    with pytest.raises(ContractError) as caught:
        validate_key("x" * 1_000_000, "tenant")
    assert len(caught.value.message) < 300


KNOWN = uuid.UUID("01a22cfa-7dbb-7846-819d-72bbbd700bb3")


@given(st.uuids())
def test_a_run_id_is_read_in_either_case_and_kept_in_lower_case(value: uuid.UUID) -> None:
    assert parse_run_id(str(value)) == str(value)
    assert parse_run_id(str(value).upper()) == str(value)


@pytest.mark.parametrize(
    "text",
    ["", "run", KNOWN.hex, f"{{{KNOWN}}}", KNOWN.urn, f"{KNOWN}\n", f" {KNOWN}", "٠" * 36, None, 7],
)
def test_anything_else_is_no_run_id(text: Any) -> None:
    with pytest.raises(ContractError) as caught:
        parse_run_id(text)
    assert caught.value.code == "run_id_invalid"


@given(st.text())
def test_any_text_is_a_run_id_or_refused_and_nothing_else(text: str) -> None:
    with suppress(ContractError):
        assert parse_run_id(text) == str(uuid.UUID(text))
