"""The audit finds what is broken: each fault is written into a sound history, and rolled back."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from runlane.adapters.postgres.audit import INVARIANTS, PostgresAudit
from runlane.adapters.postgres.connection import FixedSource, Session
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue, Throttle
from runlane.domain.verification import Scope
from tests.postgres.factories import Lane, new_run, settlement
from tests.postgres.invariants import Within, broken

pytestmark = pytest.mark.postgres

SUCCEEDED = "(SELECT run_id FROM runlane.outcome WHERE status = 'succeeded' LIMIT 1)"
LEASED = "(SELECT run_id FROM runlane.lease ORDER BY run_id LIMIT 1)"
HISTORY = "WITH e AS (INSERT INTO runlane.event (run_id, seq, type, at, attempt) SELECT"
FAULTS = {
    "a waiting run is lost": ("DELETE FROM runlane.waiting", "places", "partition_counts", "queue_counts", "wakes"),
    "a run that ended is lost": (f"DELETE FROM runlane.outcome WHERE run_id = {SUCCEEDED}", "places", "ends"),
    "a run stands twice": (
        f"INSERT INTO runlane.inbox SELECT run_id, queue_id FROM runlane.run WHERE run_id = {SUCCEEDED}",
        "places",
    ),
    "a place has no run": ("INSERT INTO runlane.inbox SELECT gen_random_uuid(), queue_id FROM runlane.queue LIMIT 1", "places"),
    "an event is lost": (f"DELETE FROM runlane.event WHERE run_id = {SUCCEEDED} AND seq = 1", "histories"),
    "a run is behind its history": ("UPDATE runlane.lease SET seq = seq - 1", "histories"),
    "a run has no history": ("DELETE FROM runlane.event WHERE run_id IN (SELECT run_id FROM runlane.successor)", "histories"),
    "a run goes on without a dispatch": (
        f"UPDATE runlane.event SET type = 'run.skipped' WHERE run_id = {LEASED} AND seq = 1",
        "transitions",
    ),
    "a run is retried that was asked to stop": (
        f"{HISTORY} run_id, seq + n, t, now(), attempt"
        " FROM runlane.lease, (VALUES (1, 'run.cancellation_requested'), (2, 'run.retry_scheduled'),"
        f" (3, 'run.dispatched'), (4, 'run.claimed')) x(n, t) WHERE run_id = {LEASED})"
        f" UPDATE runlane.lease SET seq = seq + 4 WHERE run_id = {LEASED}",
        "transitions",
    ),
    "an end is not in the history": (f"UPDATE runlane.outcome SET status = 'failed' WHERE run_id = {SUCCEEDED}", "ends"),
    "something comes after the end": (
        f"{HISTORY} run_id, seq + 1, 'run.dispatched', now(), attempt FROM runlane.outcome WHERE run_id = {SUCCEEDED})"
        f" UPDATE runlane.outcome SET seq = seq + 1 WHERE run_id = {SUCCEEDED}",
        "late_events",
        "ends",
    ),
    "a run ends twice": (
        f"{HISTORY} run_id, seq + 1, 'run.succeeded', ended_at, attempt FROM runlane.outcome WHERE run_id = {SUCCEEDED})"
        f" UPDATE runlane.outcome SET seq = seq + 1 WHERE run_id = {SUCCEEDED}",
        "late_events",
    ),
    "an attempt without the lease has written its result": (
        f"UPDATE runlane.event SET attempt = 2 WHERE run_id = {SUCCEEDED} AND type = 'run.claimed'",
        "results",
    ),
    "an outcome was written by itself": (
        f"UPDATE runlane.outcome SET attempt = attempt + 1 WHERE run_id = {SUCCEEDED}",
        "results",
    ),
    "a lease was not claimed": (f"UPDATE runlane.lease SET attempt = attempt + 1 WHERE run_id = {LEASED}", "results"),
    "an active run loses its singleton key": ("DELETE FROM runlane.singleton_key WHERE key = 's'", "singletons"),
    "an active run's key goes to another": (
        f"UPDATE runlane.singleton_key SET run_id = {SUCCEEDED} WHERE key = 's'",
        "singletons",
    ),
    "a successor is lost": ("DELETE FROM runlane.successor", "places", "singletons"),
    "a run has two owners": (
        f"{HISTORY} run_id, seq + 1, 'run.claimed', now(), attempt + 1 FROM runlane.lease WHERE run_id = {LEASED})"
        f" UPDATE runlane.lease SET seq = seq + 1, attempt = attempt + 1 WHERE run_id = {LEASED}",
        "owners",
    ),
    "a run fails too often": (
        "UPDATE runlane.run SET max_attempts = 0",
        "attempts",
    ),
    "a partition is over its limit": (
        "WITH q AS (UPDATE runlane.policy_change SET before = '{}') UPDATE runlane.event SET occupied = 3 WHERE slot_seq = 1",
        "partition_limits",
    ),
    "a queue is over its limit": (
        "WITH q AS (UPDATE runlane.policy_change SET before = '{}') UPDATE runlane.event SET queue_occupied = 9 WHERE queue_slot_seq = 1",
        "queue_limits",
    ),
    "a slot is skipped": ("UPDATE runlane.partition SET slot_seq = slot_seq + 1 WHERE slot_seq > 0", "partition_slots"),
    "a slot is taken by two": ("UPDATE runlane.event SET slot_seq = 1 WHERE slot_seq = 2", "partition_slots"),
    "a slot of a queue is lost": ("UPDATE runlane.event SET queue_slot_seq = NULL WHERE queue_slot_seq = 2", "queue_slots"),
    "a partition counts wrong": ("UPDATE runlane.partition SET waiting = waiting + 1", "partition_counts"),
    "a queue counts wrong": ("UPDATE runlane.queue_counter SET running = running + 1 WHERE shard = 3", "queue_counts"),
    "a queue counts its slots wrong": ("UPDATE runlane.queue SET occupied = occupied + 1", "queue_counts"),
    "a lease is in another partition": (f"UPDATE runlane.run SET concurrency_key = 'else' WHERE run_id = {LEASED}", "partitions"),
    "a partition with waiting runs is not in the order": ("UPDATE runlane.partition SET state = 'e' WHERE waiting > 0", "wakes"),
    "a scan begins behind a waiting run": ("UPDATE runlane.partition SET head = 'infinity' WHERE waiting > 0", "wakes"),
    "a limit was raised and nobody told": (
        "WITH q AS (UPDATE runlane.queue SET concurrency_limit = 9, total_limit = 9)"
        " UPDATE runlane.partition SET state = 'r' WHERE waiting > 0",
        "capacity",
    ),
    "a key is owned by nobody": (
        "INSERT INTO runlane.idempotency_key (task, key, run_id) VALUES ('t', 'k', gen_random_uuid())",
        "keys",
    ),
}


@pytest.fixture
def history(lane: Lane) -> Lane:
    """Runs that succeeded, were retried, released and cancelled, and some that wait, are dispatched and run."""
    lane.queues(Queue("main", concurrency_limit=2, total_limit=4))
    keys = ["a", "a", "a", "a", "b", "b", "c"]
    made = [run.run_id for run in lane.trigger(*(new_run("main", concurrency_key=key) for key in keys)).runs]
    lane.succeed(lane.claim_one(made[0]))
    lane.settle(settlement(lane.claim_one(made[1]), OutcomeKind.RELEASED))
    lane.cancel(made[4])
    lane.settle(settlement(lane.claim_one(made[5]), OutcomeKind.FAILED))
    lane.claim(made[2])
    lane.trigger(*(new_run("main", concurrency_key="a", singleton_key="s", singleton_mode="latest") for _ in range(3)))
    return lane


def test_a_sound_history_breaks_nothing(history: Lane, dsn: str, connection: psycopg.Connection) -> None:
    with closing(PostgresAudit(Session(FixedSource(dsn), "runlane"))) as audit:
        findings = audit.check()
    assert [finding.violations for finding in findings] == [()] * len(INVARIANTS)
    assert all(finding.holds for finding in findings)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_nothing_else(history: Lane, connection: psycopg.Connection, fault: str) -> None:
    statement, *invariants = FAULTS[fault]
    with connection.transaction(force_rollback=True):
        assert connection.execute(statement.encode()).rowcount > 0
        found = broken(connection)
    assert {one.name for one in found} == set(invariants), [(one.name, one.violations) for one in found]
    assert all(violation.subject and violation.fault for one in found for violation in one.violations)


def test_every_check_has_a_fault_that_it_alone_tells() -> None:
    alone = {invariants[0] for _, *invariants in FAULTS.values() if len(invariants) == 1}
    elsewhere = {"throttles", "reservations"}
    assert alone | elsewhere == {name.removeprefix("audit_") for name in INVARIANTS}


def test_a_scope_leaves_out_the_faults_of_others(history: Lane, dsn: str, connection: psycopg.Connection) -> None:
    history.queues(Queue("other"))
    mine, other = history.trigger_one("other"), history.trigger_one("other")
    audit = PostgresAudit(Within(connection))

    def names(scope: Scope) -> set[str]:
        return {found.name for found in audit.check(scope) if not found.holds}

    later = datetime.now(UTC) + timedelta(seconds=5)
    with connection.transaction(force_rollback=True):
        connection.execute("DELETE FROM runlane.event WHERE run_id = %s AND seq = 1", (mine,))
        assert names(Scope(run_id=mine)) == names(Scope(queue="other")) == names(Scope()) == {"histories"}
        assert names(Scope(run_id=other)) == names(Scope(queue="main")) == names(Scope(since=later)) == set()


def test_a_changed_limit_does_not_condemn_what_came_before(history: Lane, dsn: str, connection: psycopg.Connection) -> None:
    history.queues(Queue("main", concurrency_limit=1, total_limit=1))
    assert broken(connection) == []


def test_a_start_beyond_the_throttle_is_found_until_the_policy_changes(lane: Lane, dsn: str, connection: psycopg.Connection) -> None:
    audit = PostgresAudit(Within(connection))
    lane.queues(Queue("paced", throttle=Throttle(1, "1m", burst=1)))
    first, second = [lane.claim_one(lane.trigger_one("paced", concurrency_key="k")) for _ in range(2)]
    assert all(finding.holds for finding in audit.check())
    with connection.transaction(force_rollback=True):
        connection.execute(
            "INSERT INTO runlane.event (run_id, seq, type, at) VALUES (%s, 99, 'run.claimed', %s)", (first.run_id, second.claimed_at)
        )
        (fault,) = [violation for finding in audit.check() for violation in finding.violations if "allowed in" in violation.fault]
        assert fault.subject == "key k of queue paced"
        lane.queues(Queue("paced", throttle=Throttle(2, "1m", burst=1)))
        assert not [violation for finding in audit.check() for violation in finding.violations if "allowed in" in violation.fault]


def test_a_reservation_that_is_counted_and_not_there_is_found(lane: Lane, dsn: str, connection: psycopg.Connection) -> None:
    lane.queues(Queue("paced", throttle=Throttle(1, "1m")))
    lane.claim_one(lane.trigger_one("paced", concurrency_key="k"))
    with connection.transaction(force_rollback=True):
        connection.execute(b"UPDATE runlane.partition SET reserved = reserved + 1")
        (fault,) = [violation for finding in broken(connection) for violation in finding.violations]
        assert (fault.subject, "1 reserved" in fault.fault) == ("partition k of queue paced", True)


def test_counts_tell_runs_releases_and_the_most_slots_held(history: Lane, dsn: str, connection: psycopg.Connection) -> None:
    audit = PostgresAudit(Within(connection))
    (runs,) = audit.run_counts()
    assert (runs.recorded, runs.succeeded, runs.failed, runs.cancelled, runs.ended) == (10, 1, 1, 2, 4)
    (counts,) = audit.history_counts()
    assert (counts.released, counts.highest_in_partition, counts.highest_in_queue) == (1, 2, 4)
    assert [(wait.is_named, wait.runs) for wait in audit.waits(["a"])] == [(False, 1), (True, 3)]
    assert [holder.worker for holder in audit.holders()] == ["w"] * runs.running
