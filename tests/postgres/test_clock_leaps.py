"""The database's clock leaps, as when a machine is restored or its time is set: all that is stored was written by another clock.

Nobody can set the clock of a server that runs, so what is stored leaps the other way. Time passes likewise.
"""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg import sql

from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue, Throttle
from runlane.ports.stores import ClaimedRun
from tests.postgres.factories import Lane, new_run, settlement

pytestmark = pytest.mark.postgres

LEAP = timedelta(minutes=5)
STEP = timedelta(seconds=10)
"""Between two ticks, and between two starts of a throttled key."""
SPACING = STEP + STEP / 40
"""What a throttle keeps for starts that come late is part of its own step."""
LEASE = DELAY = 3 * STEP
SLACK = timedelta(minutes=1)
"""What all of it may take without a leap."""
QUEUES = (
    Queue("plain"),
    Queue("limit", concurrency_limit=1),
    Queue("total", concurrency_limit=2, total_limit=2),
    Queue("throttled", throttle=Throttle(1, STEP)),
    Queue("all", concurrency_limit=1, total_limit=2, throttle=Throttle(1, STEP)),
)
NAMES = [queue.name for queue in QUEUES]


def shift(connection: psycopg.Connection, by: timedelta) -> None:
    """Every stored time, in one transaction."""
    columns = connection.execute(
        "SELECT c.relname, array_agg(a.attname::text) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " WHERE c.relnamespace = 'runlane'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
        " AND a.atttypid = 'timestamptz'::regtype AND NOT a.attisdropped GROUP BY 1"
    ).fetchall()
    with connection.transaction():
        for table, names in columns:
            moves = [sql.SQL("{0} = {0} + {1}").format(sql.Identifier(name), sql.Literal(by)) for name in names]
            connection.execute(sql.SQL("UPDATE {} SET {}").format(sql.Identifier("runlane", table), sql.SQL(", ").join(moves)))


def tick(lane: Lane) -> None:
    keep = lane.storage.maintenance
    keep.fold_recorded(limit=100)
    keep.due_timers(look_ahead=timedelta(minutes=3), limit=100)
    keep.expire_deadlines(limit=100)
    keep.expire_dispatches(limit=100)
    expired = keep.expired_leases(limit=100)
    lane.settle(*(settlement(lease, OutcomeKind.LEASE_EXPIRED, delay=timedelta(0)) for lease in expired))  # type: ignore[arg-type]
    keep.dispatch_queues(limit=100)
    keep.claim_unpublished(limit=100)


def work_off(lane: Lane) -> None:
    while claims := lane.storage.deliveries.claim_oldest(NAMES, limit=10, lease_for=LEASE, worker="w").claims:
        lane.succeed(*claims)


def under_way(lane: Lane) -> tuple[int, list[ClaimedRun]]:
    """Runs of every kind in every queue: how many, and the leases that are held."""
    lane.queues(*QUEUES)
    held: list[ClaimedRun] = []
    for name in NAMES:
        keys = [f"k{place}" for place in (0, 0, 0, 1, 2)]
        lane.trigger(*(new_run(name, concurrency_key=key, tenant="acme") for key in keys))
        lane.trigger(new_run(name, delay=DELAY), new_run(name, delay=DELAY, finish_timeout=timedelta(hours=1)))
        lane.trigger(new_run(name, concurrency_key="recorded"), eager=False)
        held += lane.storage.deliveries.claim_oldest([name], limit=2, lease_for=LEASE, worker="w").claims
    waits = [claim for claim in held if claim.run_id == next(one.run_id for one in held if one.queue == claim.queue)]
    lane.settle(*(settlement(claim, OutcomeKind.RETRY, delay=DELAY) for claim in waits))
    return lane.value("SELECT count(*)::int FROM runlane.run"), [claim for claim in held if claim not in waits]


def longest_sleep(lane: Lane) -> timedelta:
    """Of the partitions that wait for their throttle."""
    found: timedelta | None = lane.value("SELECT max(ready_at - clock_timestamp()) FROM runlane.partition WHERE state = 't'")
    return found or timedelta(0)


def left(lane: Lane) -> list[tuple[object, ...]]:
    """What has not ended, and what has befallen it."""
    return lane.connection.execute(
        "SELECT q.name, r.concurrency_key, array_agg(e.type ORDER BY e.seq) FROM runlane.run r JOIN runlane.queue q USING (queue_id)"
        " JOIN runlane.event e USING (run_id) WHERE r.run_id NOT IN (SELECT run_id FROM runlane.outcome) GROUP BY 1, 2, r.run_id"
    ).fetchall()


@pytest.mark.parametrize("is_held", [True, False], ids=["workers live", "workers are gone"])
@pytest.mark.parametrize("leap", [-LEAP, LEAP], ids=["back 5 minutes", "ahead 5 minutes"])
def test_everything_ends_after_a_leap(lane: Lane, leap: timedelta, is_held: bool) -> None:
    count, held = under_way(lane)
    assert held
    shift(lane.connection, -leap)
    late = max(-leap, timedelta(0))
    assert longest_sleep(lane) <= late + SPACING
    if is_held:
        beating = {claim.run_id: claim.token for claim in held}
        assert len(lane.storage.deliveries.heartbeat(beating, lease_for=LEASE)) == len(held)
        lane.succeed(*held)

    passed = timedelta(0)
    while True:
        tick(lane)
        work_off(lane)
        if lane.value("SELECT count(*)::int FROM runlane.outcome") == count:
            break
        assert longest_sleep(lane) <= max(late - passed, timedelta(0)) + SPACING
        assert passed <= late + SLACK, left(lane)
        shift(lane.connection, -STEP)
        passed += STEP

    starts = lane.connection.execute("SELECT run_id, attempt FROM runlane.event WHERE type = 'run.claimed'").fetchall()
    assert len(starts) == len(set(starts))
    once = "SELECT max(attempt) FROM runlane.outcome WHERE status <> 'succeeded' OR attempt > 2"
    assert lane.value(once) is None
