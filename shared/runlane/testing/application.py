"""The application under test, loaded without reaching anything, and its test server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runlane.adapters.local.faults import LocalLaneError
from runlane.adapters.local.postgres import LocalPostgres
from runlane.bootstrap import load_app
from runlane.domain.errors import ConfigurationError
from runlane.runtime import Runlane
from runlane.settings import Settings, read_settings, variables_of_process
from runlane.testing.nowhere import NOWHERE

URL_VARIABLE = "RUNLANE_TEST_DATABASE_URL"
SERVER_SETTINGS = {"max_wal_size": "2GB", "checkpoint_timeout": "1h", "shared_buffers": "128MB"}


def settings_for_tests(app: str | None = None) -> Settings:
    """The process's settings, with no database and no queue; `app` wins over RUNLANE_APP."""
    return read_settings({**variables_of_process(), **NOWHERE, **({"RUNLANE_APP": app} if app else {})})


def load_cached_app(path: str) -> Runlane:
    """The application's one Runlane; call it while `NOWHERE` is in the environment."""
    app = load_app(path)
    if load_app(path) is not app:
        raise ConfigurationError(
            f"RUNLANE_APP: {path} makes another Runlane at each call, so the application would not use the test's;"
            " decorate it with functools.cache",
            code="app_invalid",
        )
    return app


@contextmanager
def server_for_tests(url: str | None = None) -> Iterator[str]:
    """A server's DSN: `url`, else RUNLANE_TEST_DATABASE_URL, else a Postgres started here, which ends with this process."""
    given = url or variables_of_process().get(URL_VARIABLE)
    if given:
        yield given
        return
    try:
        server = LocalPostgres(durable=False, settings=SERVER_SETTINGS).start()
    except LocalLaneError as error:
        error.add_note(f"For tests: install runlane[testing], or set {URL_VARIABLE} or --runlane-database-url to a server.")
        raise
    try:
        yield server.socket_dsn
    finally:
        server.stop()
