"""The one Postgres of a run: fresh databases in it, and the CPU of its processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from benchmarks.catalog import QUEUES
from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.postgres.migrate import migrate
from runlane.adapters.postgres.storage import PostgresStorage

TEMPLATE = "bench_template"


@dataclass(frozen=True, slots=True)
class ServerCpu:
    """Seconds: of the processes that serve connections to one database, and of all the others."""

    backends: float
    others: float

    def __sub__(self, before: ServerCpu) -> ServerCpu:
        return ServerCpu(self.backends - before.backends, self.others - before.others)


class BenchCluster:
    def __init__(self, server: LocalPostgres) -> None:
        self._server = server
        self._templates: set[str] = set()

    @contextmanager
    def database(self, name: str, *, template: str | None = None) -> Iterator[str]:
        """The DSN of a new database, dropped at the end.

        template: what it is a copy of, see `template`; default: our schema with the catalog's policies.
        """
        source = template or self.template(TEMPLATE, _install)
        with psycopg.connect(self._server.dsn, autocommit=True) as admin:
            admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}"')
            dsn = self._dsn(name)
            try:
                yield dsn
            finally:
                admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def template(self, name: str, fill: Callable[[str], None]) -> str:
        """A database to copy, kept for the whole run; `fill` is given its DSN when it is first asked for, and leaves no connection open."""
        if name not in self._templates:
            with psycopg.connect(self._server.dsn, autocommit=True) as admin:
                admin.execute(f'CREATE DATABASE "{name}"')
            fill(self._dsn(name))
            self._templates.add(name)
        return name

    def cpu(self, database: str) -> ServerCpu:
        """What was used since the start. Of a connection that has ended nothing is known but that it belongs to the others."""
        assert self._server.pid is not None
        postmaster = psutil.Process(self._server.pid)
        used = postmaster.cpu_times()
        backends, others = 0.0, used.user + used.system + used.children_user + used.children_system
        for child in postmaster.children(recursive=True):
            try:
                seconds, title = _seconds(child), " ".join(child.cmdline())
            except psutil.NoSuchProcess:
                continue
            if f" postgres {database} " in title:
                backends += seconds
            else:
                others += seconds
        return ServerCpu(backends, others)

    def _dsn(self, name: str) -> str:
        return f"{self._server.dsn.rpartition('/')[0]}/{name}"


def _seconds(process: psutil.Process) -> float:
    """Of CPU: by Linux' own account in nanoseconds, elsewhere in ticks of ten milliseconds."""
    account = Path(f"/proc/{process.pid}/schedstat")
    try:
        return int(account.read_text().split()[0]) / 1e9
    except OSError:
        times = process.cpu_times()
        return float(times.user + times.system)


def settle_down(dsn: str) -> None:
    """Fresh statistics and nothing left to write, so that a measurement pays for its own work only."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _install(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        migrate(connection, schema="runlane", environment="bench")
    storage = PostgresStorage(dsn)
    storage.queues.write_policies(QUEUES, actor="bench")
    storage.close()
