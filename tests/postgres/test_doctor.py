"""Each fault of a database is found on a database that has it, and named with what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from runlane.adapters.postgres.connection import FixedSource, Session
from runlane.adapters.postgres.health import PostgresHealth
from runlane.adapters.postgres.migrate import grant, load_migrations
from runlane.domain.finding import Finding, Level
from runlane.domain.queue import Queue
from runlane.services.doctor import bounds, examine
from runlane.services.doctor.database import database_checks
from tests.postgres.aged import make_week, retain_all, weeks
from tests.postgres.factories import Lane, new_run

pytestmark = pytest.mark.postgres
LIMITS = "-c statement_timeout=30s -c idle_in_transaction_session_timeout=1min"

WRONG = (Level.WARNING, Level.FAILURE)


def opened(dsn: str) -> PostgresHealth:
    return PostgresHealth(Session(FixedSource(f"{dsn} options='{LIMITS}'"), "runlane"))


@pytest.fixture
def health(lane: Lane, direct_dsn: str) -> Iterator[PostgresHealth]:
    """Of a database after a pass of maintenance, in sessions with time-outs."""
    lane.queues(Queue("work"))
    lane.storage.maintenance.note_tick([])
    found = opened(direct_dsn)
    yield found
    found.close()


def findings(health: PostgresHealth, environment: str = "test") -> tuple[Finding, ...]:
    migrations = {migration.number: migration.title for migration in load_migrations()}
    return examine(database_checks(health, environment=environment, migrations=migrations, now=lambda: datetime.now(UTC))).findings


def wrong(health: PostgresHealth, environment: str = "test") -> dict[str, Finding]:
    return {finding.check: finding for finding in findings(health, environment) if finding.level in WRONG}


def test_nothing_is_wrong_with_a_new_database(health: PostgresHealth) -> None:
    assert wrong(health) == {}


def test_another_environment_and_another_release_are_told(health: PostgresHealth, lane: Lane) -> None:
    assert "'test'" in wrong(health, "staging")["environment"].what
    with lane.connection.transaction(force_rollback=False):
        lane.connection.execute("UPDATE runlane.migration SET number = 99 WHERE number = 14")
    assert wrong(health)["schema"].remedy == "run `runlane migrate`"
    lane.connection.execute("INSERT INTO runlane.migration SELECT 14, name, checksum FROM runlane.migration WHERE number = 99")
    assert wrong(health)["schema"].level is Level.WARNING
    lane.connection.execute("DELETE FROM runlane.migration WHERE number = 99")


def test_sessions_without_time_outs_are_told(dsn: str, lane: Lane) -> None:
    plain = PostgresHealth(Session(FixedSource(dsn), "runlane"))
    told = [finding.what for finding in findings(plain) if finding.check == "settings"]
    plain.close()
    assert [what.split()[0] for what in told] == ["idle_in_transaction_session_timeout", "statement_timeout"]
    assert all("is off" in what for what in told)


def test_who_holds_back_vacuum_is_named(
    health: PostgresHealth, direct_dsn: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "HORIZON_WARNS", timedelta(0))
    with psycopg.connect(direct_dsn, application_name="nightly report") as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
        found = wrong(health)["horizon"]
        assert "nightly report" in found.what
        assert f"pg_terminate_backend({reader.info.backend_pid})" in found.remedy
    with psycopg.connect(direct_dsn) as writer:
        writer.execute("UPDATE runlane.queue SET paused_at = NULL")
        writer.execute("PREPARE TRANSACTION 'left behind'")
    try:
        found = wrong(health)["horizon"]
        assert "prepared transaction left behind" in found.what
        assert "ROLLBACK PREPARED 'left behind'" in found.remedy
    finally:
        connection.execute("ROLLBACK PREPARED 'left behind'")
    assert "horizon" not in wrong(health)


def test_a_missing_partition_is_named_with_its_week(health: PostgresHealth, lane: Lane) -> None:
    *_, last = sorted(weeks(lane))
    lane.connection.execute(f"DROP TABLE runlane.outcome_{last}".encode())
    found = wrong(health)["partitions"]
    assert (found.level, found.what) == (Level.WARNING, "outcome: none for the week in 4")
    first = sorted(weeks(lane))[0]
    lane.connection.execute(f"ALTER TABLE runlane.event DETACH PARTITION runlane.event_{first}".encode())
    told = [finding for finding in findings(health) if finding.check == "partitions"]
    assert (told[0].level, told[0].what) == (Level.FAILURE, "event: none for this week")


def test_a_pass_that_was_missed_and_what_is_late_for_it_are_told(health: PostgresHealth, lane: Lane) -> None:
    late = lane.trigger_one("work", delay=timedelta(hours=1)), lane.trigger_one("work")
    lane.age_timer(late[0])
    lane.age_dispatch(late[1])
    lane.connection.execute("UPDATE runlane.upkeep SET at = at - interval '10 minutes'")
    told = [finding.what for finding in findings(health) if finding.check == "maintenance"]
    assert told[0].startswith("ran 10m")
    assert told[1].startswith("the oldest timer is due since 1h")
    assert told[2].startswith("the oldest unclaimed dispatch expired since 1h")
    lane.connection.execute("DELETE FROM runlane.upkeep")
    assert wrong(health)["maintenance"].what.startswith("the oldest")
    assert any(finding.what == "has never run" for finding in findings(health))


def test_autovacuum_that_is_off_for_a_table_is_told(health: PostgresHealth, connection: psycopg.Connection) -> None:
    connection.execute("ALTER TABLE runlane.lease SET (autovacuum_enabled = false)")
    assert wrong(health)["autovacuum"].what == "is off for lease"
    connection.execute("ALTER TABLE runlane.lease RESET (autovacuum_enabled)")


def test_a_role_that_owns_nothing_is_told_what_it_cannot_see(health: PostgresHealth, lane: Lane, direct_dsn: str) -> None:
    lane.connection.execute('DO $$ BEGIN CREATE ROLE "Run-Time" LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$')
    grant(lane.connection, schema="runlane", role="Run-Time")
    theirs = opened(f"{direct_dsn} user=Run-Time")
    unseen = [finding for finding in findings(theirs) if finding.level is Level.UNSEEN]
    assert wrong(theirs) == {}
    theirs.close()
    assert [finding.remedy for finding in unseen] == ['GRANT pg_read_all_stats TO "Run-Time"']


def test_a_database_without_a_schema_is_told_to_be_migrated(dsn: str, health: PostgresHealth) -> None:
    empty = PostgresHealth(Session(FixedSource(dsn), "nowhere"))
    found = {finding.check: finding.what for finding in findings(empty) if finding.level is Level.FAILURE}
    empty.close()
    assert list(found) == ["schema"]
    assert "runlane migrate" in found["schema"]


def test_a_database_that_is_down_is_named_once_and_without_its_password() -> None:
    down = PostgresHealth(Session(FixedSource("postgresql://app:hush-hush@127.0.0.1:1/app"), "runlane"))
    (found,) = findings(down)
    down.close()
    assert "127.0.0.1:1:" in found.what
    assert "hush-hush" not in found.what + found.why + found.remedy


def test_a_week_that_cannot_go_is_told_with_what_keeps_it(health: PostgresHealth, lane: Lane) -> None:
    old = make_week(lane)
    lane.connection.execute(f"CREATE VIEW runlane.report AS SELECT * FROM runlane.event_{old}".encode())
    retain_all(lane)
    found = wrong(health)["retention"]
    assert "view runlane.report" in found.what
    assert found.what.startswith(f"the week of {old[:4]}-{old[4:6]}-{old[6:]}")
    lane.connection.execute("DROP VIEW runlane.report")


def test_what_failed_in_the_last_pass_and_a_schedule_that_waits_are_told(health: PostgresHealth, lane: Lane) -> None:
    lane.connection.execute(
        "INSERT INTO runlane.schedule (name, definition, enabled, decided_until, look_at)"
        " VALUES ('daily', '{}', true, now(), now() - interval '1 hour')"
    )
    lane.storage.maintenance.note_tick(["retain"])
    told = [finding.what for finding in findings(health) if finding.level is Level.FAILURE]
    assert told[0] == "failed in its last pass: retain"
    assert told[1].startswith("a schedule should have been looked at since 1h")
    lane.connection.execute("DELETE FROM runlane.schedule")


def test_a_pass_measures_the_oldest_due_run_and_what_holds_back_vacuum(lane: Lane, health: PostgresHealth, direct_dsn: str) -> None:
    nothing = lane.storage.maintenance.note_tick([])
    assert (nothing.oldest_due_for, nothing.horizon_for) == (timedelta(0), timedelta(0))
    lane.trigger(new_run("work"))
    with psycopg.connect(direct_dsn) as other:
        other.execute("SELECT txid_current()")
        with lane.connection.transaction(force_rollback=False):
            lane.connection.execute("UPDATE runlane.dispatch SET due_at = due_at - interval '10 minutes'")
        gauges = lane.storage.maintenance.note_tick([])
        assert timedelta(minutes=10) <= gauges.oldest_due_for < timedelta(minutes=11)
        assert timedelta(0) < gauges.horizon_for < timedelta(minutes=1)


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_the_oldest_due_run_may_wait_for_its_queue_too(lane: Lane, health: PostgresHealth, tenant: str | None) -> None:
    lane.queues(Queue("narrow", total_limit=1))
    lane.trigger(*(new_run("narrow", tenant=tenant, concurrency_key=key) for key in "ab"))
    with lane.connection.transaction(force_rollback=False):
        lane.connection.execute("UPDATE runlane.partition SET head = head - interval '5 minutes' WHERE state = 'r' AND head > '-infinity'")
    assert lane.storage.maintenance.note_tick([]).oldest_due_for > timedelta(minutes=5)
