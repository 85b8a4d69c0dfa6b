"""The audit finds what is broken: each fault is written into a sound history, and rolled back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
import pytest

from runlane.adapters.postgres.audit import INVARIANTS, PostgresAudit
from runlane.adapters.postgres.connection import FixedSource, Session
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue, Throttle
from tests.postgres.factories import Lane, new_run, settlement

pytestmark = pytest.mark.postgres

SUCCEEDED = "(SELECT run_id FROM runlane.outcome WHERE status = 'succeeded' LIMIT 1)"
LEASED = "(SELECT run_id FROM runlane.lease LIMIT 1)"
FAULTS = {
    "a run is lost": ("DELETE FROM runlane.waiting", "audit_places"),
    "a run stands twice": (
        f"INSERT INTO runlane.inbox SELECT run_id, queue_id FROM runlane.run WHERE run_id = {SUCCEEDED}",
        "audit_places",
    ),
    "a place has no run": ("INSERT INTO runlane.inbox SELECT gen_random_uuid(), queue_id FROM runlane.queue LIMIT 1", "audit_places"),
    "an event is lost": (f"DELETE FROM runlane.event WHERE run_id = {SUCCEEDED} AND seq = 2", "audit_histories"),
    "a run is behind its history": ("UPDATE runlane.lease SET seq = seq - 1", "audit_histories"),
    "an end is not in the history": (f"UPDATE runlane.outcome SET status = 'failed' WHERE run_id = {SUCCEEDED}", "audit_ends"),
    "an end has no outcome": (f"DELETE FROM runlane.outcome WHERE run_id = {SUCCEEDED}", "audit_ends"),
    "an active run loses its singleton key": ("DELETE FROM runlane.singleton_key WHERE key = 's'", "audit_singletons"),
    "an active run's key goes to another": (
        f"UPDATE runlane.singleton_key SET run_id = {SUCCEEDED} WHERE key = 's'",
        "audit_singletons",
    ),
    "a successor is lost": ("DELETE FROM runlane.successor", "audit_places"),
    "a run has two owners": (
        f"INSERT INTO runlane.event (run_id, seq, type, at, actor) SELECT {LEASED}, 99, 'run.claimed', now(), 'thief'",
        "audit_owners",
    ),
    "a run fails too often": (
        f"INSERT INTO runlane.event (run_id, seq, type, at) "
        f"SELECT {SUCCEEDED}, n, 'run.retry_scheduled', now() FROM generate_series(90, 93) n",
        "audit_attempts",
    ),
    "a partition is over its limit": ("UPDATE runlane.event SET occupied = 3 WHERE slot_seq = 1", "audit_partition_limits"),
    "a queue is over its limit": ("UPDATE runlane.event SET queue_occupied = 9 WHERE queue_slot_seq = 1", "audit_queue_limits"),
    "a slot event is lost": ("DELETE FROM runlane.event WHERE slot_seq = 2", "audit_partition_slots"),
    "a slot is skipped": ("UPDATE runlane.partition SET slot_seq = slot_seq + 1", "audit_partition_slots"),
    "a slot of a queue is lost": ("UPDATE runlane.event SET queue_slot_seq = NULL WHERE queue_slot_seq = 2", "audit_queue_slots"),
    "a partition counts wrong": ("UPDATE runlane.partition SET occupied = occupied + 1", "audit_partition_counts"),
    "a queue counts wrong": ("UPDATE runlane.queue_counter SET running = running + 1 WHERE shard = 3", "audit_queue_counts"),
    "a queue counts its slots wrong": ("UPDATE runlane.queue SET occupied = occupied + 1", "audit_queue_counts"),
}


class Within(Session):
    """Statements inside a transaction of the test, which is rolled back."""

    def __init__(self, dsn: str, connection: psycopg.Connection) -> None:
        super().__init__(FixedSource(dsn), "runlane")
        self._outer = connection

    def run(self, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        return self.run_on(self._outer, name, parameters)


@pytest.fixture
def history(lane: Lane) -> Lane:
    """Runs that succeeded, were retried, released and cancelled, and some that wait, are dispatched and run."""
    lane.queues(Queue("main", concurrency_limit=2, total_limit=4))
    keys = ["a", "a", "a", "a", "b", "b", "c"]
    made = [run.run_id for run in lane.trigger(*(new_run("main", concurrency_key=key) for key in keys)).runs]
    lane.succeed(lane.claim_one(made[0]))
    lane.settle(settlement(lane.claim_one(made[1]), OutcomeKind.RELEASED))
    lane.cancel(made[4])
    lane.claim(made[2])
    lane.trigger(*(new_run("main", concurrency_key="a", singleton_key="s", singleton_mode="latest") for _ in range(3)))
    return lane


def test_a_sound_history_breaks_nothing(history: Lane, dsn: str, connection: psycopg.Connection) -> None:
    findings = PostgresAudit(Within(dsn, connection)).check()
    assert [finding.violations for finding in findings] == [()] * len(INVARIANTS)
    assert all(finding.holds for finding in findings)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(history: Lane, dsn: str, connection: psycopg.Connection, fault: str) -> None:
    statement, invariant = FAULTS[fault]
    with connection.transaction(force_rollback=True):
        assert connection.execute(statement.encode()).rowcount > 0
        broken = {finding.invariant: finding.violations for finding in PostgresAudit(Within(dsn, connection)).check() if not finding.holds}
    assert INVARIANTS[invariant] in broken
    assert all(violation.subject and violation.fault for violations in broken.values() for violation in violations)


def test_a_changed_limit_does_not_condemn_what_came_before(history: Lane, dsn: str, connection: psycopg.Connection) -> None:
    history.queues(Queue("main", concurrency_limit=1, total_limit=1))
    assert all(finding.holds for finding in PostgresAudit(Within(dsn, connection)).check())


def test_a_start_beyond_the_throttle_is_found_until_the_policy_changes(lane: Lane, dsn: str, connection: psycopg.Connection) -> None:
    audit = PostgresAudit(Within(dsn, connection))
    lane.queues(Queue("paced", throttle=Throttle(1, "1m", burst=1)))
    first, second = [lane.claim_one(lane.trigger_one("paced", concurrency_key="k")) for _ in range(2)]
    assert all(finding.holds for finding in audit.check())
    with connection.transaction(force_rollback=True):
        connection.execute(
            "INSERT INTO runlane.event (run_id, seq, type, at) VALUES (%s, 99, 'run.claimed', %s)", (first.run_id, second.claimed_at)
        )
        (broken,) = [violation for finding in audit.check() for violation in finding.violations if "allowed in" in violation.fault]
        assert broken.subject == "key k of queue paced"
        lane.queues(Queue("paced", throttle=Throttle(2, "1m", burst=1)))
        assert not [violation for finding in audit.check() for violation in finding.violations if "allowed in" in violation.fault]


def test_a_reservation_that_is_counted_and_not_there_is_found(lane: Lane, dsn: str, connection: psycopg.Connection) -> None:
    lane.queues(Queue("paced", throttle=Throttle(1, "1m")))
    lane.claim_one(lane.trigger_one("paced", concurrency_key="k"))
    with connection.transaction(force_rollback=True):
        connection.execute(b"UPDATE runlane.partition SET reserved = reserved + 1")
        (broken,) = [violation for finding in PostgresAudit(Within(dsn, connection)).check() for violation in finding.violations]
        assert (broken.subject, "1 reserved" in broken.fault) == ("partition k of queue paced", True)


def test_counts_tell_runs_releases_and_the_most_slots_held(history: Lane, dsn: str, connection: psycopg.Connection) -> None:
    audit = PostgresAudit(Within(dsn, connection))
    (runs,) = audit.run_counts()
    assert (runs.recorded, runs.succeeded, runs.cancelled, runs.ended) == (10, 1, 2, 3)
    (counts,) = audit.history_counts()
    assert (counts.released, counts.highest_in_partition, counts.highest_in_queue) == (1, 2, 4)
    assert [(wait.is_named, wait.runs) for wait in audit.waits(["a"])] == [(True, 3)]
    assert [holder.worker for holder in audit.holders()] == ["w"] * runs.running
