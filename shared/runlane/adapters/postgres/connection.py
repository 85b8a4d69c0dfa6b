"""One lazily opened connection that survives a frozen sandbox and a restarted server."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from selectors import EVENT_READ, DefaultSelector
from typing import Any, Protocol

import psycopg
from psycopg import adapters, sql
from psycopg.adapt import Dumper, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import TextLoader

from runlane.adapters.postgres.faults import translate
from runlane.adapters.postgres.partitions import WEEKS_AHEAD, lacks_partition
from runlane.adapters.postgres.rows import interval_literal
from runlane.adapters.postgres.statements import statements_of

Parameters = Mapping[str, Any] | Callable[[], Mapping[str, Any]]

_IDLE_CHECK_AFTER = 1.0
_CUT_PATIENCE = 1.0
"""Seconds for a request to cancel to arrive, and to help."""
_KEEPALIVE: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    # Keepalives watch an idle connection. This ends a statement whose packets nobody acknowledges, as when a firewall forgot the
    # connection while the sandbox was frozen; without it that takes a quarter of an hour.
    "tcp_user_timeout": 15_000,
    "connect_timeout": 5,
}


class ConnectionSource(Protocol):
    """Where connection parameters come from; asked again when a login fails."""

    def conninfo(self, *, refresh: bool) -> str: ...


class FixedSource:
    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def conninfo(self, *, refresh: bool) -> str:
        return self._conninfo


Run = Callable[[str, Mapping[str, Any]], list[Any]]
"""`(name, parameters)`: the rows of one named statement."""


class Session:
    """Runs named statements, one transaction each, on one connection; safe to share between threads.

    No session state is kept and no statement prepared, so that it works behind transaction poolers. A connection found
    dead before a statement is replaced; one that dies during a statement raises `UnavailableError`, and the next
    statement opens another. A forked process opens its own, and leaves its parent's alone.
    """

    def __init__(self, source: ConnectionSource, schema: str) -> None:
        self.schema = schema
        self._source = source
        self._statements = statements_of(schema)
        self._lock = threading.Lock()
        self._connection: psycopg.Connection | None = None
        self._cursor: psycopg.Cursor | None = None
        self._inherited: psycopg.Connection | None = None
        self._process = os.getpid()
        self._used_at = 0.0

    def run(self, name: str, parameters: Parameters) -> list[Any]:
        """The rows of one named statement, which is a whole transaction. Parameters may be a function, called when its turn has come."""
        if self._process != os.getpid():
            self._start_over()
        with self._lock:
            try:
                return self._execute(name, parameters)
            except psycopg.Error as error:
                self._drop_if_broken()
                raise translate(error) from error
            finally:
                self._used_at = time.monotonic()

    def _execute(self, name: str, parameters: Parameters) -> list[Any]:
        try:
            return self._sent(name, parameters)
        except psycopg.errors.CheckViolation as error:
            if not lacks_partition(error):
                raise
        # Nobody has made partitions for weeks. Nothing of the statement was kept, so it may begin once more.
        self._sent("ensure_partitions", {"weeks": WEEKS_AHEAD})
        return self._sent(name, parameters)

    def _sent(self, name: str, parameters: Parameters) -> list[Any]:
        cursor = self._live()
        return cursor.execute(self._statements[name], parameters() if callable(parameters) else parameters).fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[Run]:
        """Several statements of one moment, which can write nothing; nobody else uses the session meanwhile."""
        if self._process != os.getpid():
            self._start_over()
        with self._lock:
            try:
                connection = self._live().connection
                with connection.transaction():
                    connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                    # Of the transaction, not of the session: compiling a statement that runs once costs more than it saves.
                    connection.execute(b"SET LOCAL jit = off")
                    yield lambda name, parameters: connection.execute(self._statements[name], parameters).fetchall()
            except psycopg.Error as error:
                self._drop_if_broken()
                raise translate(error) from error
            finally:
                self._used_at = time.monotonic()

    def run_on(self, connection: psycopg.Connection, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        """The same on the caller's connection, inside the caller's transaction."""
        try:
            with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
                _adapt(cursor)
                return cursor.execute(self._statements[name], parameters, prepare=False).fetchall()
        except psycopg.Error as error:
            if lacks_partition(error):
                # For the next try: this transaction is lost.
                self.run("ensure_partitions", {"weeks": WEEKS_AHEAD})
            raise translate(error) from error

    def run_alone(self, statement: sql.Composed, *, patience: float) -> bool:
        """Run one statement that may be in no transaction, on a connection of its own; False: it was cut off after `patience` seconds.

        Cut off from here, as `lock_timeout` would be a setting of a session, which a pooler may hand to somebody else. Where the
        request to cancel does not arrive, as behind RDS Proxy, the connection is given up a second later.
        """
        given_up = threading.Event()
        try:
            with closing(log_in(self._source)) as connection, _cut_off(connection, patience, given_up):
                connection.execute(statement)
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            return False
        except psycopg.Error as error:
            if given_up.is_set():
                return False
            raise translate(error) from error
        return True

    def address(self) -> str:
        """Host and port of the database, and nothing else of what it takes to log in."""
        known = conninfo_to_dict(self._source.conninfo(refresh=False))
        return f"{known.get('host') or known.get('hostaddr') or 'this machine'}:{known.get('port') or 5432}"

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _start_over(self) -> None:
        """After a fork: the lock may be held by a thread that is not here, and closing the connection would end the parent's."""
        self._inherited, self._connection = self._connection, None
        self._lock, self._process = threading.Lock(), os.getpid()

    def _live(self) -> psycopg.Cursor:
        if self._connection is not None and time.monotonic() - self._used_at > _IDLE_CHECK_AFTER and _is_dead(self._connection):
            self._connection.close()
            self._connection = None
        if self._connection is None:
            self._connection = log_in(self._source)
        # One cursor a connection: making one costs a fifth of what the driver spends on a statement.
        if self._cursor is None or self._cursor.connection is not self._connection:
            self._cursor = self._connection.cursor()
        return self._cursor

    def _drop_if_broken(self) -> None:
        if self._connection is not None and self._connection.broken:
            self._connection.close()
            self._connection = None


@contextmanager
def _cut_off(connection: psycopg.Connection, patience: float, given_up: threading.Event) -> Iterator[None]:
    """End what runs on the connection after `patience` seconds: by a request, and by hanging up if that does not help."""

    def cancel() -> None:
        with suppress(psycopg.Error):
            connection.cancel_safe(timeout=_CUT_PATIENCE)

    def hang_up() -> None:
        given_up.set()
        line.shutdown(socket.SHUT_RDWR)

    # A descriptor of our own: the driver's may be closed, and belong to something else, by the time it is needed.
    with closing(socket.socket(fileno=os.dup(connection.fileno()))) as line:
        timers = threading.Timer(patience, cancel), threading.Timer(patience + _CUT_PATIENCE, hang_up)
        for timer in timers:
            timer.start()
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()
            for timer in timers:
                timer.join()


def log_in(source: ConnectionSource) -> psycopg.Connection:
    """A new connection; credentials that are refused are asked for anew, once."""
    try:
        return connect(source.conninfo(refresh=False))
    except psycopg.OperationalError as error:
        # A rotated password and a token past its time look alike.
        if not _is_login_failure(error):
            raise
        return connect(source.conninfo(refresh=True))


def connect(conninfo: str) -> psycopg.Connection:
    connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, **_KEEPALIVE)
    _adapt(connection)
    return connection


class _BytesLoader(Loader):
    def load(self, data: Any) -> bytes:
        return bytes(data)


class _SecondsDumper(Dumper):
    oid = adapters.types["interval"].oid

    def dump(self, obj: timedelta) -> bytes:
        return interval_literal(obj).encode()


def _adapt(context: psycopg.Connection | psycopg.Cursor) -> None:
    # JSON stays text and ids stay strings: the layers above parse each once, into what they need.
    context.adapters.register_loader("json", _BytesLoader)
    context.adapters.register_loader("uuid", TextLoader)
    context.adapters.register_dumper(timedelta, _SecondsDumper)


def _is_dead(connection: psycopg.Connection) -> bool:
    """Whether the server has hung up; an idle socket with something to read has, or is about to say so."""
    if connection.closed:
        return True
    # Not `select`, which takes no descriptor over 1023.
    with DefaultSelector() as selector:
        selector.register(connection, EVENT_READ)
        return bool(selector.select(0))


def _is_login_failure(error: psycopg.OperationalError) -> bool:
    # By the text, as the driver knows no state of a connection that was never there. The second is a proxy's.
    return any(text in str(error) for text in ("authentication failed", "password that was provided"))
