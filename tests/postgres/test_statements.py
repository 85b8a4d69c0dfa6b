"""Every named statement fits the real schema, stays under the poolers' size, and is named once."""

from __future__ import annotations

import re

import psycopg
import pytest

from runlane.adapters.postgres.statements import into_schema, named_statements, quote_schema

_TYPES = {"lease": "interval", "look_ahead": "interval", "limit": "int", "weeks": "int", "weight": "int", "eager": "boolean"}
_TYPES |= {"concurrency_limit": "int", "total_limit": "int", "dispatch_timeout": "interval", "dispatch_window": "int"}
LARGEST_STATEMENT = 16 * 1024


@pytest.mark.parametrize("name", sorted(named_statements()))
def test_a_statement_can_be_prepared_on_the_schema(name: str, connection: psycopg.Connection) -> None:
    text = into_schema(named_statements()[name], "runlane")
    parameters = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    for place, parameter in enumerate(parameters, 1):
        cast = f"::{_TYPES[parameter]}" if parameter in _TYPES else ""
        text = text.replace(f"%({parameter})s", f"${place}{cast}")

    connection.execute(f'PREPARE "{name}" AS {text}'.encode())

    assert len(text.encode()) < LARGEST_STATEMENT


@pytest.mark.parametrize("name", sorted(named_statements()))
def test_a_statement_says_what_it_is_for(name: str) -> None:
    assert named_statements()[name].startswith("-- ")


def test_a_schema_name_is_quoted_so_that_it_cannot_end_the_identifier() -> None:
    assert quote_schema('a"; DROP SCHEMA x; --') == '"a""; DROP SCHEMA x; --"'
