"""A pgbouncer in transaction mode before a local Postgres: stricter than RDS Proxy, which pins a session where this breaks it."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runlane.adapters.local.account import server_account
from runlane.adapters.local.guarded import GuardedProcess
from runlane.adapters.local.ports import LOOPBACK, free_port

_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin"
START_TIMEOUT = 10.0


def installed_pgbouncer() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path=_PATH)


NEEDS_PGBOUNCER = pytest.mark.skipif(installed_pgbouncer() is None, reason="pgbouncer is not installed")


class Pooler:
    """Passes on every database and role of the server at `target`, a connection string over a unix socket; also a context manager.

    settings: of pgbouncer, on top.
    """

    def __init__(self, target: str, settings: Mapping[str, object] | None = None) -> None:
        server = conninfo_to_dict(target)
        self._server = f"host={server['host']} port={server['port']}"
        self._settings = {
            "pool_mode": "transaction",
            "listen_addr": LOOPBACK,
            "unix_socket_dir": "",
            # Whoever the server knows and lets in without a password over its socket.
            "auth_type": "trust",
            "auth_user": server["user"],
            "auth_query": "SELECT rolname, ''::text FROM pg_roles WHERE rolname = $1",
            "max_client_conn": 500,
            "default_pool_size": 50,
            "ignore_startup_parameters": "extra_float_digits",
            "log_connections": 0,
            "log_disconnections": 0,
            "stats_period": 3600,
            **(settings or {}),
        }
        self._folder: Path | None = None
        self._process: GuardedProcess | None = None
        self.port = 0

    def way(self, dsn: str) -> str:
        """The connection string `dsn`, through here."""
        return make_conninfo(dsn, host=LOOPBACK, port=self.port)

    def start(self) -> Pooler:
        """Start it and wait until it listens; after `kill`, on the same port."""
        program = installed_pgbouncer()
        assert program is not None, "pgbouncer is not installed"
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="runlane-pool-"))
        # A free port may be taken before it is used.
        for port in [self.port] if self.port else [free_port() for _ in range(3)]:
            self.port = port
            self._spawn(program, self._folder)
            if self._is_listening():
                return self
        raise AssertionError(f"pgbouncer did not start: {(self._folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End it as a crash does: every client and every session of the server loses its connection."""
        assert self._process is not None
        self._process.stop(signal.SIGKILL)
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Pooler:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def _spawn(self, program: str, folder: Path) -> None:
        configuration = folder / "pgbouncer.ini"
        lines = [f"{name} = {value}" for name, value in {**self._settings, "listen_port": self.port}.items()]
        configuration.write_text("\n".join(["[databases]", f"* = {self._server}", "[pgbouncer]", *lines, ""]))
        account = server_account(program, folder)
        self._process = GuardedProcess.start(
            [*account.prefix, program, "-q", str(configuration)],
            log=folder / "log",
            stop_signal=signal.SIGINT,
            uid=account.uid,
            gid=account.gid,
            remove=[folder],
        )

    def _is_listening(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while self._process.is_alive() and time.monotonic() < deadline:
            with suppress(OSError), closing(socket.create_connection((LOOPBACK, self.port), timeout=2)):
                return True
            time.sleep(0.02)
        return False
