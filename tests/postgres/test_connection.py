"""A session outlives what happens to its connection."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.postgres.bell import PostgresBell
from runlane.adapters.postgres.connection import FixedSource, Session
from runlane.domain.errors import ConfigurationError, InvariantError, UnavailableError

ours = pytest.mark.direct(reason="behind a pooler the server's session is not the client's")


def _backend(session: Session) -> int:
    session.run("read_policies", {})
    connection = session._connection
    assert connection is not None
    return connection.info.backend_pid


def _terminate(connection: psycopg.Connection, pid: int) -> None:
    connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


@ours
def test_a_connection_that_died_while_idle_is_replaced_before_the_statement(dsn: str, connection: psycopg.Connection) -> None:
    session = Session(FixedSource(dsn), "runlane")
    first = _backend(session)
    _terminate(connection, first)
    session._used_at -= 60

    assert _backend(session) != first
    session.close()


@ours
def test_a_connection_that_dies_in_use_is_unavailable_once_and_then_replaced(dsn: str, connection: psycopg.Connection) -> None:
    session = Session(FixedSource(dsn), "runlane")
    _terminate(connection, _backend(session))

    with pytest.raises(UnavailableError):
        session.run("read_policies", {})

    assert session.run("read_policies", {}) == []
    session.close()


def test_a_schema_that_is_not_migrated_says_what_to_run(dsn: str) -> None:
    session = Session(FixedSource(dsn), "nowhere")

    with pytest.raises(ConfigurationError, match="runlane migrate"):
        session.run("read_policies", {})
    session.close()


class Rotating:
    """Its first password is refused."""

    def __init__(self, server: LocalPostgres, dsn: str) -> None:
        self.asked: list[bool] = []
        self._stale = make_conninfo(server.dsn, password="stale")
        self._dsn = dsn

    def conninfo(self, *, refresh: bool) -> str:
        self.asked.append(refresh)
        return self._dsn if refresh else self._stale


def test_a_refused_login_asks_for_fresh_credentials_once(dsn: str, server: LocalPostgres) -> None:
    source = Rotating(server, dsn)
    session = Session(source, "runlane")
    assert session.run("read_policies", {}) == []
    assert source.asked == [False, True]
    session.close()


@pytest.mark.direct(reason="a transaction pooler passes no notification on")
def test_so_does_a_bell(dsn: str, server: LocalPostgres) -> None:
    source = Rotating(server, dsn)
    bell = PostgresBell(source, "runlane", ["work"])
    assert bell.open()
    assert source.asked == [False, True]
    bell.close()


def test_an_error_of_the_database_carries_no_values(dsn: str) -> None:
    session = Session(FixedSource(dsn), "runlane")

    with pytest.raises(Exception, match="refused a statement") as raised:
        session.run("trigger_runs", {"runs": '[{"secret": "hunter2"', "eager": True})

    assert "hunter2" not in str(raised.value)
    session.close()


@pytest.mark.direct(reason="the connection string carries a setting")
def test_a_statement_that_no_request_to_cancel_reaches_is_given_up(
    dsn: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that passes none on. The server's own limit is the test's: with it, the statement would fail."""
    monkeypatch.setattr(psycopg.Connection, "cancel_safe", lambda *_, **__: None)
    session = Session(FixedSource(f"{dsn} options='-c statement_timeout=20s'"), "runlane")
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(1)")
        pid = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        assert not session.run_alone(sql.SQL("SELECT pg_advisory_lock({})").format(1), patience=0.1)
        assert connection.execute(pid).fetchone(), "the server was not asked, and still waits"


def test_what_a_table_cannot_lose_is_named_by_the_servers_message(dsn: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE VIEW runlane.report AS SELECT * FROM runlane.lease")
    with pytest.raises(InvariantError, match=r"2BP01: cannot drop table runlane\.lease"):
        Session(FixedSource(dsn), "runlane").run_alone(sql.SQL("DROP TABLE {}").format(sql.Identifier("runlane", "lease")), patience=20)
    connection.execute("DROP VIEW runlane.report")
