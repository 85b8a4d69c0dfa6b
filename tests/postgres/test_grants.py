"""What the runtime's role is granted."""

from __future__ import annotations

import psycopg
import pytest

from runlane.adapters.postgres.migrate import grant
from runlane.domain.errors import ConfigurationError


def test_a_role_that_does_not_exist_is_named_with_its_variable(connection: psycopg.Connection) -> None:
    with pytest.raises(ConfigurationError) as caught:
        grant(connection, schema="runlane", role="nobody_here")
    assert caught.value.message.startswith("RUNLANE_DATABASE_ROLE: ")


def test_no_function_that_runs_as_the_owner_may_be_called_by_everybody(connection: psycopg.Connection) -> None:
    definers = dict(
        connection.execute(
            "SELECT p.proname, EXISTS (SELECT 1 FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0)"
            " FROM pg_proc p WHERE p.pronamespace = 'runlane'::regnamespace AND p.prosecdef"
        ).fetchall()
    )
    assert "retain_v1" in definers
    assert [name for name, by_everybody in definers.items() if by_everybody] == []
