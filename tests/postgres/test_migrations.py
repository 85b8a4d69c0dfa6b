"""Migrations run once however often and by however many, claim their schema, and give the runtime's role no more than it needs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from runlane.adapters.postgres import migrate as migrate_module
from runlane.adapters.postgres.migrate import Migration, Phase, grant, load_migrations, make_role, migrate, pending
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import ConfigurationError
from runlane.domain.queue import Queue
from runlane.ports.stores import NewRun
from tests.postgres.factories import Lane

DUMP = Path(__file__).parent / "schema.txt"
_COLUMNS = """
SELECT 'column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = 'runlane'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'c') AND NOT c.relispartition
  AND a.attnum > 0 AND NOT a.attisdropped
"""
_INDEXES = "SELECT 'index ' || replace(indexdef, 'runlane.', '') FROM pg_indexes WHERE schemaname = 'runlane' AND indexname !~ '[0-9]{8}'"
_FUNCTIONS = "SELECT 'function ' || oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'runlane'::regnamespace"


def test_the_schema_is_the_one_that_is_checked_in(connection: psycopg.Connection) -> None:
    lines = sorted(row[0] for part in (_COLUMNS, _INDEXES, _FUNCTIONS) for row in connection.execute(part))

    assert "\n".join(lines) + "\n" == DUMP.read_text(encoding="utf-8"), (
        "the schema has changed: write the new one into tests/postgres/schema.txt"
    )


def test_migrating_again_does_nothing(connection: psycopg.Connection) -> None:
    assert migrate(connection, schema="runlane", environment="test") == ()
    assert pending(connection, schema="runlane") == ()


def test_four_processes_migrate_an_empty_schema_once(dsn: str) -> None:
    def run(_: int) -> tuple[str, ...]:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
            return migrate(connection, schema="another", environment="staging")

    with ThreadPoolExecutor(4) as pool:
        applied = [title for titles in pool.map(run, range(4)) for title in titles]

    assert sorted(applied) == [migration.title for migration in load_migrations()]


def test_an_edited_migration_is_refused(connection: psycopg.Connection) -> None:
    connection.execute("UPDATE runlane.migration SET checksum = 'other' WHERE number = 1")

    with pytest.raises(ConfigurationError, match="never edited"):
        migrate(connection, schema="runlane", environment="test")
    connection.execute("DELETE FROM runlane.migration WHERE number = 1")


def test_a_schema_belongs_to_one_environment(connection: psycopg.Connection) -> None:
    with pytest.raises(ConfigurationError, match="belongs to environment 'test'"):
        migrate(connection, schema="runlane", environment="staging")


def test_a_schema_of_any_name_works(dsn: str, connection: psycopg.Connection) -> None:
    name = 'odd "name"; DROP'
    migrate(connection, schema=name, environment="odd")
    storage = PostgresStorage(dsn, schema=name)
    storage.queues.write_policies([Queue("main")], actor=None)

    assert len(storage.triggers.trigger_runs([NewRun("t", "main", "{}")], eager=True).wakeups) == 1
    storage.close()


def test_the_runtimes_role_works_and_owns_nothing(dsn: str, lane: Lane, connection: psycopg.Connection) -> None:
    role = "runtime_role"
    connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    lane.storage.queues.write_policies([Queue("main")], actor=None)
    grant(connection, schema="runlane", role=role)
    storage = PostgresStorage(make_conninfo(dsn, user=role))

    (recorded,) = storage.triggers.trigger_runs([NewRun("t", "main", "{}")], eager=True).runs
    (claim,) = storage.deliveries.claim_runs([recorded.run_id], lease_for=timedelta(minutes=1), worker="w").claims
    assert storage.maintenance.ensure_partitions().count == 0
    assert claim.run_id == recorded.run_id
    with psycopg.connect(make_conninfo(dsn, user=role), autocommit=True) as restricted:
        for statement in ("DROP TABLE runlane.run", "UPDATE runlane.environment SET name = 'x'", "CREATE TABLE runlane.mine (x int)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                restricted.execute(statement.encode())
    storage.close()
    connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
    connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.fixture
def stranger(dsn: str, connection: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A connection of a role that was granted nothing."""
    connection.execute("CREATE ROLE stranger LOGIN")
    with psycopg.connect(make_conninfo(dsn, user="stranger"), autocommit=True) as opened:
        yield opened
    connection.execute("DROP SCHEMA IF EXISTS own CASCADE")
    connection.execute("DROP OWNED BY stranger")
    connection.execute("DROP ROLE stranger")


def test_a_role_that_may_not_migrate_is_told_what_to_grant(connection: psycopg.Connection, stranger: psycopg.Connection) -> None:
    with pytest.raises(ConfigurationError, match=r'run: GRANT CREATE ON DATABASE "\w+" TO "stranger"') as caught:
        migrate(stranger, schema="own", environment="own")
    assert caught.value.code == "privilege_missing"

    connection.execute(caught.value.message.split("run: ")[1].encode())
    assert migrate(stranger, schema="own", environment="own")


def test_an_owner_of_the_schema_need_not_be_able_to_make_one(connection: psycopg.Connection, stranger: psycopg.Connection) -> None:
    connection.execute("CREATE SCHEMA own AUTHORIZATION stranger")
    assert migrate(stranger, schema="own", environment="own")


def test_a_schema_of_another_role_is_told_with_its_owner(connection: psycopg.Connection, stranger: psycopg.Connection) -> None:
    connection.execute("CREATE SCHEMA own")
    for refused in (lambda: migrate(stranger, schema="own", environment="own"), lambda: grant(stranger, schema="own", role="stranger")):
        with pytest.raises(ConfigurationError, match=r"belongs to the role '\w+'; migrate as that role, or .*: GRANT \"\w+\" TO"):
            refused()


def test_a_runtime_without_its_grants_is_told_to_migrate_with_its_role(dsn: str, stranger: psycopg.Connection) -> None:
    storage = PostgresStorage(make_conninfo(dsn, user="stranger"))
    with pytest.raises(ConfigurationError, match="RUNLANE_DATABASE_ROLE") as caught:
        storage.queues.stats(["main"])
    assert caught.value.code == "privilege_missing"
    storage.close()


def test_time_partitions_are_made_beside_open_transactions(dsn: str, connection: psycopg.Connection, storage: PostgresStorage) -> None:
    storage.queues.write_policies([Queue("main")], actor=None)
    with psycopg.connect(dsn) as caller:
        caller.execute("SELECT runlane.trigger('t', '{}', 'main')")
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '2s'")
            assert connection.execute("SELECT runlane.ensure_partitions_v1(now(), 5)").fetchone() == (3,)
            unmatched = connection.execute(
                "SELECT c.relname FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid WHERE c.relispartition AND c.relkind = 'r'"
                " AND NOT EXISTS (SELECT 1 FROM pg_inherits h WHERE h.inhrelid = i.indexrelid)"
            ).fetchall()
            assert unmatched == []


LATER = (
    Migration(9001, "add", "before", "CREATE TABLE {schema}.added ()"),
    Migration(9002, "backfill", "before", "CREATE TABLE {schema}.filled ()", manual=True),
    Migration(9003, "remove", "after", "CREATE TABLE {schema}.removed ()"),
    Migration(9004, "rewrite", "after", "CREATE TABLE {schema}.rewritten ()", manual=True),
)


def deploy(connection: psycopg.Connection, phase: Phase, release: str, previous: str | None = None) -> tuple[str, ...]:
    return migrate(connection, schema="runlane", environment="test", phase=phase, release=release, previous=previous)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> tuple[Migration, ...]:
    """A release with more migrations than the one that is there."""
    monkeypatch.setattr(migrate_module, "load_migrations", lambda: (*load_migrations(), *LATER))
    return LATER


@pytest.mark.usefixtures("later")
def test_a_deploy_stops_at_what_only_a_person_applies_and_goes_on_after_it(connection: psycopg.Connection) -> None:
    with pytest.raises(ConfigurationError, match="9002_backfill may take longer than a deploy: run `runlane migrate`") as caught:
        deploy(connection, "before", "layer:2")
    assert caught.value.code == "migration_manual"
    assert connection.execute("SELECT to_regclass('runlane.added')").fetchone() == (None,), "nothing of it is applied"

    assert migrate(connection, schema="runlane", environment="test", phase="before") == ("9001_add", "9002_backfill")
    assert deploy(connection, "before", "layer:2") == ()


@pytest.mark.usefixtures("later")
def test_a_new_schema_has_no_rows_that_take_long(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        applied = migrate(connection, schema="another", environment="staging", phase="before", release="layer:1")
    assert applied[-2:] == ("9001_add", "9002_backfill")


@pytest.mark.usefixtures("later")
def test_what_this_release_no_longer_uses_goes_with_the_next(connection: psycopg.Connection) -> None:
    assert deploy(connection, "after", "layer:2", "layer:1") == ()
    assert deploy(connection, "after", "layer:2", "layer:1") == (), "the release before still uses it, and the deploy may go back to that"
    assert deploy(connection, "after", "layer:3", "layer:2") == ("9003_remove",)
    assert deploy(connection, "after", "layer:4", "layer:3") == (), "a manual one waits for a person, and holds up nobody"


@pytest.mark.usefixtures("later")
def test_what_a_release_announced_that_was_taken_back_is_announced_again(connection: psycopg.Connection) -> None:
    assert deploy(connection, "after", "layer:2", "layer:1") == ()
    assert deploy(connection, "after", "layer:3", "layer:1") == (), "layer 1 is still there, and uses it"
    assert deploy(connection, "after", "layer:4", "layer:3") == ("9003_remove",)


def test_the_runtimes_role_is_made_with_its_login_and_again_with_another(connection: psycopg.Connection, dsn: str) -> None:
    for password in ("first", "sec'ond"):
        make_role(connection, role="run lane", password=password)
    (verifier,) = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'run lane'").fetchone() or ("",)
    assert verifier.startswith("SCRAM-SHA-256$")
    (settings,) = connection.execute("SELECT rolconfig FROM pg_roles WHERE rolname = 'run lane'").fetchone() or ([],)
    assert settings == ["statement_timeout=60s", "idle_in_transaction_session_timeout=60s"]
    grant(connection, schema="runlane", role="run lane")
    with psycopg.connect(make_conninfo(dsn, user="run lane", password="sec'ond")) as runtime:
        assert runtime.execute("SELECT count(*) FROM runlane.queue").fetchone()
    connection.execute('DROP OWNED BY "run lane"')
    connection.execute('DROP ROLE "run lane"')
