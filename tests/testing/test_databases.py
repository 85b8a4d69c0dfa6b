"""Databases for tests are copies of a template, used again only while nothing but rows has changed."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runlane import Queue
from runlane.adapters.postgres.migrate import pending
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.testing.application import server_for_tests
from runlane.testing.databases import MOST_USES, PREFIX, Databases
from runlane.testing.rows import FEW
from tests.postgres.factories import new_run

CHANGES = {
    "a table of the test": "CREATE TABLE mine (id int)",
    "a schema dropped": "DROP SCHEMA runlane CASCADE",
    "a function replaced": "CREATE OR REPLACE FUNCTION runlane.trigger(text, json) RETURNS void LANGUAGE sql AS 'SELECT'",
    "a column added": "ALTER TABLE runlane.run ADD COLUMN mine int",
    "a column dropped": "ALTER TABLE runlane.run DROP COLUMN meta CASCADE",
    "an index dropped": "DROP INDEX runlane.timer_hinted",
    "a constraint added": "ALTER TABLE runlane.timer ADD CHECK (due_at IS NOT NULL)",
    "a right granted": "GRANT USAGE ON SCHEMA runlane TO pg_monitor",
    "a type made": "CREATE TYPE runlane.mood AS ENUM ('ok')",
    "a migration forgotten": "DELETE FROM runlane.migration",
    "another environment": "UPDATE runlane.environment SET name = 'other'",
    "a setting of the database": "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = 64', current_database()); END $$",
}


@pytest.fixture(scope="module")
def databases(_runlane_databases: Databases) -> Databases:
    """The plugin's own, with a database that is idle."""
    with _runlane_databases.lend():
        pass
    return _runlane_databases


def name_of(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["dbname"])


def execute(dsn: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def trigger(dsn: str, number: int) -> None:
    storage = PostgresStorage(dsn)
    storage.queues.write_policies([Queue("main")], actor="test")
    storage.triggers.trigger_runs([new_run("main") for _ in range(number)], eager=False)
    storage.close()


@pytest.mark.parametrize("number", [1, FEW + 1], ids=["few", "many"])
def test_rows_are_deleted_and_the_database_is_used_again(databases: Databases, number: int) -> None:
    for _ in range(2):
        with databases.lend() as dsn:
            assert execute(dsn, "SELECT count(*) FROM runlane.run") == [(0,)]
            trigger(dsn, number)
            name = name_of(dsn)
    with databases.lend() as dsn:
        assert name_of(dsn) == name
        with psycopg.connect(dsn) as connection:
            assert pending(connection, schema="runlane") == ()
        assert execute(dsn, "SELECT count(*) FROM runlane.event") == [(0,)]


@pytest.mark.parametrize("statement", CHANGES.values(), ids=CHANGES.keys())
def test_what_is_more_than_rows_is_no_bodys_next_database(databases: Databases, statement: str) -> None:
    if "REPLACE FUNCTION" in statement:
        with databases.lend() as dsn:
            ((found,),) = execute(dsn, "SELECT pg_get_functiondef('runlane.claim_runs_v1'::regproc)")
        statement = str(found).replace("BEGIN", "BEGIN -- changed", 1)
    with databases.lend() as dsn:
        broken = name_of(dsn)
        execute(dsn, statement)
    with databases.lend() as dsn:
        assert name_of(dsn) != broken
        execute(dsn, "SELECT * FROM runlane.run_state")
    assert execute(dsn, f"SELECT FROM pg_database WHERE datname = '{broken}'") == []


def test_a_test_that_drops_its_database_leaves_the_next_a_new_one(databases: Databases, server_dsn: str) -> None:
    with databases.lend() as dsn:
        execute(server_dsn, f"DROP DATABASE {name_of(dsn)} WITH (FORCE)")
    with databases.lend() as another:
        assert name_of(another) != name_of(dsn)


def test_connections_that_a_test_forgets_are_cut_with_their_locks(databases: Databases) -> None:
    with databases.lend() as dsn:
        forgotten = psycopg.connect(dsn)
        forgotten.execute("LOCK TABLE runlane.run")
    with databases.lend() as again:
        assert name_of(again) == name_of(dsn)
        with pytest.raises(psycopg.OperationalError):
            forgotten.execute("SELECT 1")
    forgotten.close()


def test_two_tests_at_a_time_have_two_databases(databases: Databases) -> None:
    with databases.lend() as one, databases.lend() as other:
        assert one != other


def test_a_database_is_not_used_for_ever(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.testing.databases.MOST_USES", 1)
    assert MOST_USES > 1
    with databases.lend() as dsn:
        pass
    with databases.lend() as another:
        assert name_of(another) != name_of(dsn)


def test_what_a_killed_process_left_is_dropped_and_what_a_live_one_has_is_kept(server_dsn: str, runlane_database: str) -> None:
    left = f"{PREFIX}0123456789ab_1"
    execute(server_dsn, f"CREATE DATABASE {left}")
    execute(server_dsn, "CREATE DATABASE runlane_tests_of_mine")
    with Databases(server_dsn) as mine, mine.lend() as dsn:
        names = {str(name) for (name,) in execute(server_dsn, "SELECT datname FROM pg_database")}
        assert left not in names
        assert {name_of(runlane_database), name_of(dsn), "runlane_tests_of_mine"} <= names
    kept = {str(name) for (name,) in execute(server_dsn, "SELECT datname FROM pg_database")}
    assert names - kept >= {name_of(dsn)}
    assert name_of(runlane_database) in kept


FOREIGN = ["runlane_test_app", f"{PREFIX}0123456789ab_app", f"{PREFIX}0123456789ab_1_app", f"{PREFIX}0123456789AB_1"]


@pytest.fixture
def foreign(server_dsn: str) -> Iterator[list[str]]:
    """Databases of somebody else, named much like those of the tests."""
    for name in FOREIGN:
        execute(server_dsn, f'CREATE DATABASE "{name}" STRATEGY FILE_COPY')
    yield FOREIGN
    for name in FOREIGN:
        execute(server_dsn, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def test_a_database_that_is_only_named_alike_is_kept(server_dsn: str, foreign: list[str]) -> None:
    with Databases(server_dsn):
        pass
    kept = {name for (name,) in execute(server_dsn, "SELECT datname FROM pg_database")}
    assert set(foreign) <= kept


@pytest.mark.parametrize("name", [FOREIGN[0], f"{PREFIX}0123456789ab_2"], ids=["named alike", "named the same"])
@pytest.mark.thorough
def test_the_database_that_one_is_given_is_kept(server_dsn: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(server_dsn, f"CREATE DATABASE {name} STRATEGY FILE_COPY")
    monkeypatch.setenv("RUNLANE_TEST_DATABASE_URL", make_conninfo(server_dsn, dbname=name))
    try:
        with server_for_tests() as given, Databases(given) as mine, mine.lend() as dsn:
            assert name_of(dsn) != name
        assert execute(server_dsn, f"SELECT count(*) FROM pg_database WHERE datname = '{name}'") == [(1,)]
    finally:
        execute(server_dsn, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
