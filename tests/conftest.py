"""The Postgres servers that most tests share: of each version one a process, whatever folder asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache

import pytest

from runlane.adapters.local.binaries import installed_postgres
from runlane.adapters.local.postgres import LocalPostgres
from tests.pooler import Pooler
from tests.postgres.databases import Databases

SETTINGS = {
    "shared_buffers": "256MB",
    "autovacuum_naptime": "5s",
    "deadlock_timeout": "200ms",
    "max_wal_size": "2GB",
    "max_prepared_transactions": "2",
    "checkpoint_timeout": "1h",
}


@dataclass(frozen=True)
class Running:
    server: LocalPostgres
    databases: Databases
    pooler: Callable[[], Pooler]
    """A pgbouncer before the server, started when it is first asked for."""


@pytest.fixture(scope="session")
def running() -> Iterator[Callable[[int], Running]]:
    """The server of a major version, started once a process: a parameter of a session fixture would stop one to start the other."""
    installed = {binaries.major for binaries in installed_postgres()}
    with ExitStack() as started:

        @cache
        def start(major: int) -> Running:
            if major not in installed:
                pytest.skip(f"Postgres {major} is not installed")
            server = started.enter_context(LocalPostgres(major=major, durable=False, settings=SETTINGS))
            # Nothing of it is wanted at the end, so nothing is written out.
            started.callback(server.kill)
            databases = started.enter_context(closing(Databases(server.socket_dsn)))
            return Running(server, databases, cache(lambda: started.enter_context(Pooler(server.socket_dsn))))

        yield start


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How large the part of the fault matrix was that has run, and how long it took."""
    reports = [report for report in terminalreporter.getreports("passed") if "faults" in dict(report.user_properties)]
    if reports:
        faults = sum(int(dict(report.user_properties)["faults"]) for report in reports)
        seconds = sum(report.duration for report in reports)
        terminalreporter.line(
            f"{faults} faults in {len(reports)} use cases, {seconds:.0f} s of {faults and 1000 * seconds / faults:.0f} ms each"
        )
