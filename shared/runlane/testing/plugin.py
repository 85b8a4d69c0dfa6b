"""The pytest plugin: an isolated, migrated database for each test that asks for one, and the application bound to it.

Loaded by every pytest where runlane is installed, so it imports next to nothing before a fixture is used, and does nothing to a project
that neither sets `runlane_app` nor uses the fixture `runlane`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from runlane.testing.nowhere import NOWHERE, REMEDY, outside, wanted_database

if TYPE_CHECKING:
    from runlane.runtime import Runlane
    from runlane.settings import Settings
    from runlane.testing.databases import Databases

_IS_NOWHERE = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("runlane").addoption(
        "--runlane-database-url",
        metavar="URL",
        help="make the test databases on this Postgres server instead of one started for the session (RUNLANE_TEST_DATABASE_URL)",
    )
    parser.addini("runlane_app", "the Runlane of the application under test, as module:attribute (default: RUNLANE_APP, else app:runlane)")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before a conftest.py can import the application, which may read the environment at once."""
    if early_config.getini("runlane_app"):
        _go_nowhere(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """The same for a plugin that was loaded later, by `pytest_plugins`."""
    if config.getini("runlane_app"):
        _go_nowhere(config)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Without the ini option, a test that uses the fixture tells that this project's tests are Runlane's."""
    if any("_runlane_app" in getattr(item, "fixturenames", ()) for item in session.items):
        _go_nowhere(session.config)


def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Say what is missing instead of how the connection failed. Here, since the errors of unittest's tests come by here only."""
    if call.excinfo is not None and wanted_database(call.excinfo.value):
        call.excinfo = pytest.ExceptionInfo.from_exception(pytest.fail.Exception(REMEDY).with_traceback(outside(call.excinfo.tb)))


def _go_nowhere(config: pytest.Config) -> None:
    """Hide the environment's database and queue from the tests until the session's end."""
    if config.stash.get(_IS_NOWHERE, False):
        return
    config.stash[_IS_NOWHERE] = True
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    for name, value in NOWHERE.items():
        patch.setenv(name, value)


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
def _runlane_app(_runlane_settings: Settings, pytestconfig: pytest.Config) -> Runlane:
    from runlane.testing.application import load_cached_app

    # A test that asks for the fixture by `getfixturevalue` is the first to tell.
    _go_nowhere(pytestconfig)
    return load_cached_app(_runlane_settings.app)
