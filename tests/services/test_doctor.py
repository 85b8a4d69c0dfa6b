"""From where on something is wrong, and that one check's trouble keeps no other from its turn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runlane.domain.errors import ConfigurationError, InvariantError, RunlaneError, UnavailableError
from runlane.domain.finding import Finding, Level
from runlane.domain.schedule import Timing
from runlane.ports.health import HorizonHolder, IdAges, PartitionGap, SchemaState, ServerState, StuckWeek, TableState, UpkeepState
from runlane.ports.schedules import StoredSchedule
from runlane.services.doctor import Report, examine
from runlane.services.doctor.database import catalog_checks, database_checks
from runlane.services.doctor.deployment import template_check

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SERVER = ServerState("18.1", "app", NOW, 100, 10, True, MINUTE, MINUTE, True)
WRONG = (Level.WARNING, Level.FAILURE)
UPKEEP = UpkeepState(timedelta(seconds=40), (), None, None, None, ())


class FakeHealth:
    """Answers what it was made with; all is well otherwise."""

    def __init__(self, **facts: Any) -> None:
        self._facts: dict[str, Any] = {
            "server": SERVER,
            "schema": SchemaState("production", frozenset({1})),
            "horizon": (),
            "tables": (TableState("lease", 10, True),),
            "id_ages": IdAges(1, "app", 1, "app"),
            "partition_gaps": (),
            "upkeep": UPKEEP,
            "stuck_weeks": (),
            **facts,
        }

    def __getattr__(self, name: str) -> Any:
        def answer() -> Any:
            if isinstance(found := self._facts[name], Exception):
                raise found
            return found

        return answer


def found(health: FakeHealth) -> list[Finding]:
    return list(examine(database_checks(health, environment="production", migrations={1: "0001"}, now=lambda: NOW)).findings)


def wrong(**facts: Any) -> list[tuple[str, Level]]:
    return [(finding.check, finding.level) for finding in found(FakeHealth(**facts)) if finding.level in WRONG]


def schema_findings(applied: set[int] | None, *, before_deploy: bool = False) -> list[tuple[Level, str]]:
    """Of a release of which 2 is left to a person, 3 and 4 remove something, and 4 is left to a person, too."""
    stored = RunlaneError("schema_missing", "no schema") if applied is None else SchemaState("production", frozenset(applied))
    checks = database_checks(
        FakeHealth(schema=stored),
        environment="production",
        migrations={1: "0001", 2: "0002", 3: "0003", 4: "0004"},
        now=lambda: NOW,
        manual=(2, 4),
        after=(3, 4),
        before_deploy=before_deploy,
    )
    return [(finding.level, finding.what) for finding in examine(checks).findings if finding.check == "schema"]


def held(age: int, held_for: timedelta | None = None) -> tuple[HorizonHolder, ...]:
    return (HorizonHolder("session", "pid 1", age, held_for, "SELECT pg_terminate_backend(1)"),)


def test_a_healthy_database_is_well() -> None:
    assert wrong() == []


@pytest.mark.parametrize(
    ("facts", "check", "level"),
    [
        ({"server": replace(SERVER, now=NOW + timedelta(seconds=2))}, "clock", Level.WARNING),
        ({"server": replace(SERVER, now=NOW - MINUTE)}, "clock", Level.FAILURE),
        ({"server": replace(SERVER, connections=80)}, "connections", Level.WARNING),
        ({"server": replace(SERVER, connections=100)}, "connections", Level.FAILURE),
        ({"server": replace(SERVER, autovacuum=False)}, "autovacuum", Level.FAILURE),
        ({"horizon": held(5, MINUTE)}, "horizon", Level.WARNING),
        ({"horizon": held(5, 10 * MINUTE)}, "horizon", Level.FAILURE),
        ({"horizon": held(50_000)}, "horizon", Level.WARNING),
        ({"horizon": held(1_000_000)}, "horizon", Level.FAILURE),
        ({"tables": (TableState("lease", 50_000, True),)}, "dead rows", Level.WARNING),
        ({"tables": (TableState("lease", 1_000_000, True),)}, "dead rows", Level.FAILURE),
        ({"id_ages": IdAges(500_000_000, "app", 1, "app")}, "transaction ids", Level.WARNING),
        ({"id_ages": IdAges(1, "app", 1_000_000_000, "app")}, "multixact ids", Level.FAILURE),
        ({"partition_gaps": (PartitionGap(1, "run"),)}, "partitions", Level.FAILURE),
        ({"partition_gaps": (PartitionGap(2, "run"),)}, "partitions", Level.WARNING),
        ({"upkeep": replace(UPKEEP, pending_detaches=("run_20250101",))}, "partitions", Level.WARNING),
        ({"upkeep": replace(UPKEEP, ticked_for=4 * MINUTE)}, "maintenance", Level.FAILURE),
        ({"upkeep": replace(UPKEEP, overdue_timer=4 * MINUTE)}, "maintenance", Level.FAILURE),
        ({"upkeep": replace(UPKEEP, overdue_schedule=4 * MINUTE)}, "maintenance", Level.FAILURE),
        ({"upkeep": replace(UPKEEP, failed_phases=("retain",))}, "maintenance", Level.FAILURE),
        ({"stuck_weeks": (StuckWeek(NOW.date(), "2BP01", "view v depends on it"),)}, "retention", Level.FAILURE),
    ],
)
def test_what_is_wrong_is_told_by_its_measure(facts: dict[str, Any], check: str, level: Level) -> None:
    assert wrong(**facts) == [(check, level)]


def test_warnings_alone_leave_it_well() -> None:
    def report(**facts: Any) -> Report:
        return examine(database_checks(FakeHealth(**facts), environment="production", migrations={1: "0001"}, now=lambda: NOW))

    warned = report(server=replace(SERVER, statement_timeout=None, connections=80))
    assert (warned.is_well, warned.count(Level.WARNING), warned.count(Level.FAILURE)) == (True, 2, 0)
    assert not report(server=replace(SERVER, connections=100)).is_well


def test_what_is_below_every_measure_is_not_told() -> None:
    assert wrong(horizon=(*held(49_999), *held(10**9, timedelta(seconds=59))), tables=(TableState("lease", 49_999, True),)) == []


def test_everything_that_is_wrong_says_why_and_what_mends_it() -> None:
    findings = found(
        FakeHealth(
            server=replace(SERVER, statement_timeout=None, connections=99),
            schema=SchemaState("other", frozenset()),
            horizon=held(1, timedelta(days=1)),
            tables=(TableState("lease", 10**6, False),),
            partition_gaps=(PartitionGap(0, "run"),),
        )
    )
    told = [finding for finding in findings if finding.level in WRONG]
    assert len(told) >= 7
    assert [finding.check for finding in told if not (finding.why and finding.remedy)] == []


def test_a_check_that_fails_is_a_finding_and_the_others_have_their_turn() -> None:
    findings = found(FakeHealth(id_ages=InvariantError("storage_refused", "gone")))
    assert [(finding.check, finding.what) for finding in findings if finding.level is Level.FAILURE] == [
        ("transaction ids", "could not be looked at: gone")
    ]
    assert "maintenance" in {finding.check for finding in findings}


@pytest.mark.parametrize(
    ("check", "error"),
    [
        ("server", UnavailableError("storage_unavailable", "the database at db:5432: refused")),
        ("schema", ConfigurationError("run `runlane migrate`", code="schema_missing")),
    ],
)
def test_nothing_is_looked_at_that_would_only_fail_alike(check: str, error: RunlaneError) -> None:
    last = found(FakeHealth(**{check: error}))[-1]
    assert (last.check, last.what) == (check, f"could not be looked at: {error.message}")


def schedule(timing: Timing | None) -> StoredSchedule:
    return StoredSchedule("daily", timing, True, "t", "main", {}, None, None, None, NOW)


def test_queues_that_differ_and_that_the_code_does_not_know_are_told() -> None:
    drift = ("queue 'main': limit 1 here, 2 there", "schedule 'daily' is not stored yet")
    checks = catalog_checks(lambda: drift, lambda: {"main", "old"}, ["main"], tuple)
    assert [(finding.check, finding.what) for finding in examine(checks).findings] == [
        ("queues", "queue 'main': limit 1 here, 2 there"),
        ("queues", "queue 'old' is stored, and the application does not have it"),
        ("schedules", "schedule 'daily' is not stored yet"),
    ]
    assert examine(catalog_checks(tuple, lambda: {"main"}, ["main"], tuple)).is_well


def test_a_schedule_that_cannot_be_read_is_a_failure() -> None:
    checks = catalog_checks(tuple, lambda: {"main"}, ["main"], lambda: (schedule(None),))
    assert [finding.check for finding in examine(checks).findings if finding.level is Level.FAILURE] == ["schedules"]


@pytest.mark.parametrize(
    ("applied", "level", "what"),
    [
        (None, Level.OK, "is not there yet; the deploy makes it"),
        ({2, 3, 4}, Level.OK, "the deploy applies 0001"),
        ({1, 2}, Level.OK, "is the one of this release"),
        ({1}, Level.FAILURE, "lacks 0002, which may take longer than a deploy"),
    ],
)
def test_before_a_deploy_only_what_it_cannot_do_blocks_it(applied: set[int] | None, level: Level, what: str) -> None:
    assert schema_findings(applied, before_deploy=True) == [(level, what)]


def test_after_a_deploy_what_waits_for_the_next_is_no_fault_but_what_waits_for_a_person_is_told() -> None:
    assert schema_findings({1, 2, 4}) == [(Level.OK, "is the one of this release")]
    assert schema_findings({1, 2}) == [(Level.OK, "is the one of this release"), (Level.WARNING, "still has what 0004 removes")]
    assert schema_findings({1})[0] == (Level.FAILURE, "lacks 0002")


def test_a_template_is_current_or_not_or_has_nothing_to_compare() -> None:
    levels = [template_check("template.yaml", is_current=state).level for state in (True, False, None)]
    assert levels == [Level.OK, Level.FAILURE, Level.UNSEEN]
    assert "runlane template --write template.yaml" in template_check("template.yaml", is_current=False).remedy
