"""The pytest plugin: an isolated, migrated database for each test that asks for one, and the application bound to it.

Loaded by every pytest where runlane is installed, so it imports nothing before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from runlane.runtime import Runlane
    from runlane.settings import Settings
    from runlane.testing.databases import Databases


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("runlane").addoption(
        "--runlane-database-url",
        metavar="URL",
        help="make the test databases on this Postgres server instead of one started for the session (RUNLANE_TEST_DATABASE_URL)",
    )
    parser.addini("runlane_app", "the Runlane of the application under test, as module:attribute (default: RUNLANE_APP, else app:runlane)")


@pytest.fixture
def runlane_database(_runlane_databases: Databases) -> Iterator[str]:
    """The connection string of a database of the test's own: migrated, without runs, without queue policies."""
    with _runlane_databases.lend() as dsn:
        yield dsn


@pytest.fixture
def runlane(_runlane_app: Runlane, _runlane_settings: Settings, runlane_database: str) -> Iterator[Runlane]:
    """The application's own Runlane on `runlane_database`, its policies in force; wakeups are recorded and not sent.

    Nothing runs until `runlane.testing.drain`. What the application triggers by itself arrives here too.
    """
    from runlane.testing.lane import on_database

    with on_database(_runlane_app, runlane_database, schema=_runlane_settings.database_schema):
        yield _runlane_app


@pytest.fixture(scope="session")
def _runlane_settings(pytestconfig: pytest.Config) -> Settings:
    from runlane.testing.application import settings_for_tests

    return settings_for_tests(pytestconfig.getini("runlane_app"))


@pytest.fixture(scope="session")
def _runlane_databases(pytestconfig: pytest.Config, _runlane_settings: Settings) -> Iterator[Databases]:
    """One server a process: workers of pytest-xdist share nothing but a server that was given, and have databases of their own on it."""
    from runlane.testing.application import server_for_tests
    from runlane.testing.databases import Databases

    settings = _runlane_settings
    with (
        server_for_tests(pytestconfig.getoption("--runlane-database-url")) as server,
        Databases(server, schema=settings.database_schema, environment=settings.environment) as databases,
    ):
        yield databases


@pytest.fixture(scope="session")
def _runlane_app(_runlane_settings: Settings) -> Runlane:
    from runlane.testing.application import NOWHERE, load_cached_app

    with pytest.MonkeyPatch.context() as patch:
        for name, value in NOWHERE.items():
            patch.setenv(name, value)
        return load_cached_app(_runlane_settings.app)
