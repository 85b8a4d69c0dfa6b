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
