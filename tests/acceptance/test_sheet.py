"""What `runs show` tells of a failure, before and after the run has ended."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from runlane.cli.runs.single import sheet
from runlane.domain.event import EventType
from runlane.domain.ids import RunId
from runlane.domain.outcome import Failure
from runlane.domain.records import AttemptRecord, RunRecord
from runlane.domain.run import Source, Status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, LAST = Failure("attempt_failed", "ValueError", "the first"), Failure("attempt_failed", "ConnectionError", "the last")
ATTEMPTS = [
    AttemptRecord(1, NOW, NOW, EventType.RETRY_SCHEDULED, "w", FIRST),
    AttemptRecord(2, NOW, NOW, EventType.RETRY_SCHEDULED, "w", LAST),
    AttemptRecord(3, NOW, NOW, EventType.RELEASED, "w", None),
]


def run(status: Status, failure: Failure | None) -> RunRecord:
    return RunRecord(
        run_id=RunId("01900000-0000-7000-8000-000000000000"),
        task="t",
        queue="main",
        status=status,
        tenant=None,
        concurrency_key=None,
        attempt=3,
        failures=2,
        created_at=NOW,
        due_at=NOW,
        ended_at=NOW if status.is_terminal else None,
        source=Source.TRIGGER,
        source_run_id=None,
        payload={},
        result=None,
        failure=failure,
        priority=0,
        idempotency_key=None,
        singleton_key=None,
        max_attempts=5,
        start_timeout=None,
        finish_timeout=None,
        actor=None,
        trace=None,
        meta=None,
        lease_expires_at=None,
        cancellation_requested_at=None,
    )


def facts(status: Status, failure: Failure | None) -> list[str]:
    """The lines of the run's own table."""
    written = StringIO()
    Console(file=written, width=200).print(sheet(run(status, failure), ATTEMPTS))
    return [" ".join(line.split()) for line in written.getvalue().partition("attempt  claimed")[0].splitlines()]


@pytest.mark.parametrize("status", [Status.RETRYING, Status.RELEASED, Status.RUNNING])
def test_a_run_that_goes_on_tells_why_its_last_failed_attempt_did(status: Status) -> None:
    assert "last failure ConnectionError: the last" in facts(status, None)


def test_a_failed_run_tells_its_own_failure() -> None:
    shown = facts(Status.FAILED, FIRST)
    assert "failure ValueError: the first" in shown
    assert not [line for line in shown if line.startswith("last failure")]


def test_a_run_that_succeeded_in_the_end_has_no_failure() -> None:
    assert not [line for line in facts(Status.SUCCEEDED, None) if "failure " in line]
