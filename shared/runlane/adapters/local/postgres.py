"""A Postgres of one's own: on loopback and a unix socket, on a free port, gone when the process that started it is gone."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import psutil
import psycopg

from runlane.adapters.local.account import Account, server_account
from runlane.adapters.local.binaries import PostgresBinaries, find_postgres
from runlane.adapters.local.cluster import SERVER_VARIABLES, SUPERUSER, Cluster
from runlane.adapters.local.faults import LocalLaneError, with_log_tail
from runlane.adapters.local.guarded import GuardedProcess
from runlane.adapters.local.ports import LOOPBACK, free_port

START_TIMEOUT = 30.0
PROBE_INTERVAL = 0.02
# What passes by itself: backends of a killed server still ending, a port that somebody else was quicker to take.
TRANSIENT = ("still in use", "Address already in use")
UNDURABLE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


class LocalPostgres:
    """A server with one superuser, `postgres`, and one database, `postgres`; also a context manager.

    directory: keeps the data between runs; default a temporary folder that `stop` removes.
    major: the Postgres version, say 15; default the pip-installed one, else the newest of Debian's.
    durable: False trades crash safety for speed; for tests that kill no machine.
    port: of TCP; default a free one, kept by `restart`.
    settings: server settings on top, by name.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        major: int | None = None,
        durable: bool = True,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.binaries: PostgresBinaries = find_postgres(major)
        self.port = port
        self._directory = directory
        self._durable = durable
        self._settings = {"max_connections": "200", **({} if durable else UNDURABLE), **(settings or {})}
        self._cluster: Cluster | None = None
        self._account: Account | None = None
        self._server: GuardedProcess | None = None
        # Paths of unix sockets end at 107 characters, so they get a short folder of their own.
        self._sockets: Path | None = None

    @property
    def dsn(self) -> str:
        """The superuser's DSN over TCP."""
        return f"postgresql://{SUPERUSER}:{self._started().password}@{LOOPBACK}:{self.port}/{SUPERUSER}"

    @property
    def socket_dsn(self) -> str:
        """The superuser's DSN over the unix socket, without a password."""
        self._started()
        return f"postgresql://{SUPERUSER}@/{SUPERUSER}?host={quote(str(self._sockets), safe='')}&port={self.port}"

    @property
    def pid(self) -> int | None:
        """The postmaster's pid while it runs."""
        return self._server.pid if self._server and self._server.is_alive() else None

    def start(self) -> LocalPostgres:
        """Start the server and wait until it takes connections, at most 30 s; nothing happens when it runs.

        Raises LocalLaneError with the end of the server's log.
        """
        if self.pid is not None:
            return self
        atexit.register(self.stop)
        try:
            self._prepare()
            self._launch(time.monotonic() + START_TIMEOUT)
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self) -> None:
        """Stop without a trace of a crash, and start on the same port; after `kill` this is crash recovery."""
        self._end_server()
        self.start()

    def kill(self) -> None:
        """SIGKILL the postmaster and every backend at once; `start` then recovers what was committed."""
        if (pid := self.pid) is None or self._server is None:
            return
        postmaster = psutil.Process(pid)
        # Suspended first, so that it starts no backend while its backends are listed.
        postmaster.suspend()
        for process in (*postmaster.children(recursive=True), postmaster):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._server.stop(signal.SIGKILL)
        self._server = None

    def stop(self) -> None:
        """Stop the server; a temporary data directory is removed. Safe to call twice."""
        atexit.unregister(self.stop)
        self._end_server()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None
        if self._directory is None and self._cluster is not None:
            shutil.rmtree(self._cluster.base, ignore_errors=True)
            self._cluster = None

    def __enter__(self) -> LocalPostgres:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def _started(self) -> Cluster:
        if self._cluster is None or self._sockets is None:
            raise LocalLaneError("The local Postgres was not started: call start() first.")
        return self._cluster

    def _prepare(self) -> None:
        if self._cluster is not None and self._sockets is not None:
            return
        base = Path(tempfile.mkdtemp(prefix="runlane-pg-")) if self._directory is None else self._directory.resolve()
        base.mkdir(parents=True, exist_ok=True)
        self._cluster = Cluster(base)
        self._sockets = Path(tempfile.mkdtemp(prefix="runlane-"))
        postgres = self.binaries.path("postgres")
        self._account = server_account(postgres, base, self._sockets)
        self._cluster.create(self.binaries, self._account, sync=self._directory is not None)

    def _launch(self, deadline: float) -> None:
        cluster, wanted = self._started(), self.port
        while True:
            self.port = wanted or free_port()
            cluster.release()
            written = cluster.log.stat().st_size if cluster.log.exists() else 0
            self._server = self._spawn(cluster)
            if self._answers(deadline):
                return
            complaint = cluster.log.read_text(errors="replace")[written:]
            if time.monotonic() > deadline or not any(text in complaint for text in TRANSIENT):
                raise with_log_tail(f"Postgres {self.binaries.major} did not start on port {self.port}.", cluster.log)
            self._end_server()
            time.sleep(0.1)

    def _spawn(self, cluster: Cluster) -> GuardedProcess:
        account = self._account or server_account(self.binaries.path("postgres"), cluster.base)
        settings = {**self._settings, "listen_addresses": LOOPBACK, "unix_socket_directories": str(self._sockets)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        disposable = [cluster.base] if self._directory is None else []
        return GuardedProcess.start(
            [*account.prefix, self.binaries.path("postgres"), "-D", str(cluster.data), "-p", str(self.port), *options],
            log=cluster.log,
            stop_signal=signal.SIGINT,
            variables=SERVER_VARIABLES,
            uid=account.uid,
            gid=account.gid,
            remove=[*disposable, *([self._sockets] if self._sockets else [])],
        )

    def _answers(self, deadline: float) -> bool:
        while self.pid is not None and time.monotonic() < deadline:
            try:
                psycopg.connect(self.socket_dsn, connect_timeout=2).close()
            except psycopg.OperationalError:
                time.sleep(PROBE_INTERVAL)
            else:
                return True
        return False

    def _end_server(self) -> None:
        if self._server is not None:
            # SIGINT is Postgres's fast shutdown: sessions are ended, nothing is waited for.
            self._server.stop(signal.SIGINT)
            self._server = None
