from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from runlane import Runlane
from runlane.testing import on_database
from tests.testing import catalog


@pytest.fixture
def shop(runlane_database: str) -> Iterator[Runlane]:
    catalog.heard.clear()
    made = catalog.shop()
    with on_database(made, runlane_database):
        yield made
        assert made.verify().holds


@pytest.fixture
def server_dsn(runlane_database: str) -> str:
    return make_conninfo(runlane_database, dbname="postgres")
