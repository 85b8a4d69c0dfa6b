"""No statistics make a statement walk over a list or a table once for every row of another.

Hash and merge joins are pinned off, so a nested loop that is turned round costs the square of a burst. Judged by the rows that pass through
the nodes of the plans, in a session that made its plans under one kind of statistics and keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue, Throttle
from runlane.domain.records import Fire
from runlane.domain.run import Source
from runlane.domain.schedule import Timing
from runlane.ports.schedules import Plan
from runlane.ports.stores import ClaimedRun, NewRun, PublishMark, PublishResult, ScheduleDefinition
from tests.postgres.factories import LEASE, PAST, Lane, ids, new_run, settlement
from tests.postgres.visits import WatchedSession, WatchedStorage

pytestmark = pytest.mark.postgres

FEW, BURST = 2, 120
EACH = 75
"""Rows that all executions of a statement may visit for each run of a burst; a walk over the burst for each is BURST of them at least."""
COUNTERS = 130
"""What the counters of a queue add, which a statement may sum up for each run: 32 shards through four nodes, however large the burst."""
CANCELLED = 20
LATER = timedelta(hours=1)
TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'runlane'::regnamespace AND relkind = 'r'"

Burst = Callable[[Lane, str, int], Iterator[int]]
"""Prepares `count` runs on a queue of its own, yields how many of them will move, and then moves them, which is watched."""


def keys(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, concurrency_limit=1))
    yield count
    lane.trigger(*(new_run(queue, concurrency_key=f"k{place}") for place in range(count)))


def tenants(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, concurrency_limit=1))
    yield count
    lane.trigger(*(new_run(queue, tenant=f"t{place}", concurrency_key=f"k{place}") for place in range(count)))


def one_tenant(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, concurrency_limit=1))
    yield count
    lane.trigger(*(new_run(queue, tenant="t", concurrency_key=f"k{place}") for place in range(count)))


def recorded(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, total_limit=count))
    yield count
    lane.trigger(*(new_run(queue, tenant=f"t{place}") for place in range(count)), eager=False)
    lane.storage.triggers.dispatch([queue])


def triggered(lane: Lane, queue: Queue, count: int, *, repeats: int = 1) -> list[RunId]:
    """Runs with a key each, or `repeats` of them with each key."""
    lane.queues(queue)
    runs = [new_run(queue.name, concurrency_key=f"k{place}", start_timeout=LATER) for place in range(count) for _ in range(repeats)]
    return ids(lane.trigger(*runs).runs)


def claimed(lane: Lane, queue: Queue, count: int, *, repeats: int = 1) -> tuple[ClaimedRun, ...]:
    triggered(lane, queue, count, repeats=repeats)
    return lane.storage.deliveries.claim_oldest([queue.name], limit=count, lease_for=LEASE, worker="w").claims


def claim(lane: Lane, queue: str, count: int) -> Iterator[int]:
    found = triggered(lane, Queue(queue), count)
    yield count
    lane.claim(*found)


def claim_what_waits(lane: Lane, queue: str, count: int) -> Iterator[int]:
    found = triggered(lane, Queue(queue, total_limit=1), count)
    yield count
    lane.claim(*found)


def claim_what_ended(lane: Lane, queue: str, count: int) -> Iterator[int]:
    claims = claimed(lane, Queue(queue), count)
    lane.succeed(*claims)
    yield count
    lane.claim(*ids(claims))


def claim_what_expired(lane: Lane, queue: str, count: int) -> Iterator[int]:
    claims = claimed(lane, Queue(queue), count)
    lane.age_lease(*ids(claims))
    yield count
    lane.claim(*ids(claims))


def settle(lane: Lane, queue: str, count: int) -> Iterator[int]:
    claims = claimed(lane, Queue(queue, concurrency_limit=1), count, repeats=2)
    yield count
    lane.succeed(*claims)


def settle_and_claim(lane: Lane, queue: str, count: int) -> Iterator[int]:
    claims = claimed(lane, Queue(queue, total_limit=count), count, repeats=2)
    yield count
    settlements = [settlement(claim) for claim in claims]
    lane.storage.deliveries.settle_and_claim(settlements, [queue], limit=count, lease_for=LEASE, worker="w")


def retry(lane: Lane, queue: str, count: int) -> Iterator[int]:
    claims = claimed(lane, Queue(queue, concurrency_limit=1), count)
    yield count
    lane.settle(*(settlement(claim, OutcomeKind.RETRY) for claim in claims))


def refuse(lane: Lane, queue: str, count: int) -> Iterator[int]:
    claims = claimed(lane, Queue(queue), count)
    lane.succeed(*claims[1:])
    yield count
    lane.succeed(*claims)


def beat(lane: Lane, queue: str, count: int) -> Iterator[int]:
    claims = claimed(lane, Queue(queue), count)
    yield count
    lane.storage.deliveries.heartbeat({claim.run_id: claim.token for claim in claims}, lease_for=LEASE)


def publish(lane: Lane, queue: str, count: int) -> Iterator[int]:
    found = triggered(lane, Queue(queue), count)
    lane.age_publication(*found)
    yield count
    lane.storage.maintenance.claim_unpublished(limit=count)
    lane.storage.triggers.mark_published([PublishMark(PublishResult(run_id, published=True)) for run_id in found])


def expire(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.age_dispatch(*triggered(lane, Queue(queue, concurrency_limit=1), count))
    yield count
    lane.storage.maintenance.expire_dispatches(limit=count)


def time_out(lane: Lane, queue: str, count: int) -> Iterator[int]:
    triggered(lane, Queue(queue, total_limit=count // 2), count)
    lane.age_deadlines()
    yield count
    lane.storage.maintenance.expire_deadlines(limit=count)


def fire(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, concurrency_limit=1))
    lane.trigger(*(new_run(queue, delay=LATER, concurrency_key=f"k{place}") for place in range(2 * count)))
    lane.connection.execute(
        f"UPDATE runlane.timer SET due_at = {PAST} WHERE run_id IN (SELECT run_id FROM runlane.timer LIMIT {count})".encode()
    )
    yield count
    lane.storage.maintenance.due_timers(look_ahead=2 * LATER, limit=count)


def fold(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue))
    lane.trigger(*(new_run(queue, concurrency_key=f"k{place}") for place in range(count)), eager=False)
    yield count
    lane.storage.maintenance.fold_recorded(limit=count)


def fill_window(lane: Lane, queue: str, count: int) -> Iterator[int]:
    triggered(lane, Queue(queue, dispatch_window=1), count)
    lane.connection.execute(b"UPDATE runlane.queue SET dispatch_window = 1000 WHERE name = %s", (queue,))
    yield count
    lane.storage.maintenance.dispatch_queues(limit=count)


def pause(lane: Lane, queue: str, count: int) -> Iterator[int]:
    triggered(lane, Queue(queue, concurrency_limit=1), count)
    yield count
    lane.storage.queues.pause(queue, tenant=None, concurrency_key=None, actor=None)
    lane.storage.queues.resume(queue, tenant=None, concurrency_key=None, actor=None)


def limit(lane: Lane, queue: str, count: int) -> Iterator[int]:
    claims = claimed(lane, Queue(queue), count // 2)
    triggered(lane, Queue(queue), count - len(claims))
    yield count
    lane.queues(Queue(queue, concurrency_limit=1))


def cancel(lane: Lane, queue: str, count: int) -> Iterator[int]:
    found = triggered(lane, Queue(queue, concurrency_limit=1), count, repeats=2)
    yield CANCELLED
    for run_id in found[:CANCELLED]:
        lane.cancel(run_id)


def cancel_together(lane: Lane, queue: str, count: int) -> Iterator[int]:
    found = triggered(lane, Queue(queue, concurrency_limit=1), count, repeats=2)
    yield count
    lane.storage.operations.cancel_runs(found[:count], actor=None, reason=None)


def failed(lane: Lane, queue: str, count: int) -> list[RunId]:
    lane.queues(Queue(queue, total_limit=count))
    found = ids(lane.trigger(*(new_run(queue, concurrency_key=f"k{place}") for place in range(count))).runs)
    lane.settle(*(settlement(claim, OutcomeKind.FAILED) for claim in lane.claim(*found).claims))
    return found


def retry_by_hand(lane: Lane, queue: str, count: int) -> Iterator[int]:
    found = failed(lane, queue, count)
    yield count
    lane.storage.operations.read_origins(found)
    lane.again(*found, only_failed=True, queue=queue)


def rerun(lane: Lane, queue: str, count: int) -> Iterator[int]:
    found = failed(lane, queue, count)
    yield count
    lane.again(*found, queue=queue)


def prune(lane: Lane, queue: str, count: int) -> Iterator[int]:
    failed(lane, queue, count)
    keyed = {"task": queue, "payload_hash": "h", "idempotency_ttl": timedelta(0)}
    runs = [new_run(queue, idempotency_key=f"i{place}", singleton_key=f"s{place}", **keyed) for place in range(count)]
    lane.succeed(*lane.claim(*ids(lane.trigger(*runs).runs)).claims)
    yield count
    assert lane.prune(queue=queue, limit=2 * count).pruned == 2 * count


def move(lane: Lane, queue: str, count: int) -> Iterator[int]:
    found = triggered(lane, Queue(queue, concurrency_limit=1), count, repeats=2)
    yield 2 * CANCELLED
    for run_id in found[:CANCELLED]:
        lane.reschedule(run_id, LATER)
        lane.reschedule(run_id, -LATER)


def start_now(lane: Lane, queue: str, count: int) -> Iterator[int]:
    triggered(lane, Queue(queue, concurrency_limit=1), count)
    yield CANCELLED
    for place in range(CANCELLED):
        lane.storage.operations.run_now(new_run(queue, concurrency_key=f"n{place}"), lease_for=LEASE, worker="w")


def keyed(queue: str, count: int, mode: str = "latest") -> list[NewRun]:
    options = {"task": queue, "singleton_mode": mode}
    return [new_run(queue, singleton_key=f"s{place}", concurrency_key=f"k{place}", **options) for place in range(count)]


def leave_successors(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, total_limit=2 * count))
    lane.trigger(*keyed(queue, count))
    yield 2 * count
    for _ in range(2):
        lane.trigger(*keyed(queue, count))


def succeed(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, concurrency_limit=1))
    claims = lane.claim(*ids(lane.trigger(*keyed(queue, count)).runs)).claims
    lane.trigger(*keyed(queue, count // 2))
    yield count
    lane.succeed(*claims)


def replace(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, total_limit=count // 2))
    lane.trigger(*keyed(queue, count))
    yield count
    lane.trigger(*keyed(queue, count, "cancel"))


def fold_successors(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, concurrency_limit=1))
    lane.trigger(*keyed(queue, count))
    for mode in ("latest", "cancel"):
        lane.trigger(*keyed(queue, count, mode), eager=False)
    yield 2 * count
    lane.storage.triggers.dispatch([queue])


def scheduled(queue: str, count: int, **options: str) -> list[ScheduleDefinition]:
    run = new_run(queue, source=Source.SCHEDULE, **options)
    return [ScheduleDefinition(f"{queue}-{place}", Timing(every=LATER), True, run) for place in range(count)]


def plans_of_all(lane: Lane, count: int) -> list[Plan]:
    """One fire of each, some time from now."""
    return [
        Plan(one.schedule_id, one.version, one.now, one.now + LATER, (Fire(one.now + LATER, one.now + LATER),))
        for one in lane.storage.schedules.due_schedules(limit=count)
    ]


def fire_schedules(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, concurrency_limit=1))
    lane.storage.schedules.write_schedules(scheduled(queue, count), actor=None)
    plans = plans_of_all(lane, count)
    yield count
    assert lane.storage.schedules.materialize(plans).made == count


def change_schedules(lane: Lane, queue: str, count: int) -> Iterator[int]:
    lane.queues(Queue(queue, concurrency_limit=1))
    lane.storage.schedules.write_schedules(scheduled(queue, count), actor=None)
    lane.storage.schedules.materialize(plans_of_all(lane, count))
    yield count
    changed = lane.storage.schedules.write_schedules(scheduled(queue, count // 2, tenant="t"), actor=None).changes
    assert len(changed) == count


def throttle(lane: Lane, queue: str, count: int) -> Iterator[int]:
    """Keys that sleep, each with a hint; then all of them late, woken, claimed, put off and given back."""
    lane.queues(Queue(queue, throttle=Throttle(1, "1m")))
    yield 3 * count
    runs = lane.trigger(*(new_run(queue, concurrency_key=f"k{place}") for place in range(count) for _ in range(2))).runs
    lane.connection.execute(b"UPDATE runlane.partition SET throttle_clock = '2000-01-01', ready_at = '2000-01-01' WHERE state = 't'")
    lane.claim(*ids(runs[::2]))
    lane.connection.execute(b"UPDATE runlane.partition SET throttle_clock = '2000-01-01', ready_at = '2000-01-01' WHERE state = 't'")
    lane.storage.maintenance.dispatch_queues(limit=count)
    lane.connection.execute(b"UPDATE runlane.partition SET throttle_clock = clock_timestamp() + interval '1 hour'")
    lane.claim(*ids(runs[1::2]))


BURSTS: tuple[Burst, ...] = (
    *(keys, tenants, one_tenant, recorded, claim, claim_what_waits, claim_what_ended, claim_what_expired, settle, settle_and_claim, retry),
    *(refuse, beat, publish, expire, time_out, fire, fold, fill_window, pause, limit, cancel),
    *(cancel_together, retry_by_hand, rerun, prune, move, start_now, leave_successors, succeed, replace, fold_successors),
    *(fire_schedules, change_schedules),
    throttle,
)


def no_rows(lane: Lane) -> None:
    pass


def hardly_a_row(lane: Lane) -> None:
    claimed(lane, Queue("old", concurrency_limit=1), 1, repeats=2)
    lane.trigger(new_run("old", tenant="t", concurrency_key="k"), new_run("old", tenant="t", delay=LATER))
    lane.trigger(new_run("old"), eager=False)


def rows_of_others(lane: Lane) -> None:
    claimed(lane, Queue("others", total_limit=600), 300, repeats=4)
    lane.trigger(*(new_run("others", tenant=f"t{place}", delay=LATER) for place in range(300)))
    lane.trigger(*(new_run("others", tenant=f"t{place}") for place in range(300)))
    lane.trigger(*(new_run("others") for _ in range(300)), eager=False)


def rows_that_are_gone(lane: Lane) -> None:
    """Tables with room and nothing in it: every index of them seems to cost the same."""
    rows_of_others(lane)
    for (table,) in lane.connection.execute(TABLES.encode()).fetchall():
        if table not in ("queue", "queue_counter", "environment", "migration"):
            lane.connection.execute(f"DELETE FROM runlane.{table}".encode())
    lane.connection.execute(b"UPDATE runlane.queue_counter SET waiting = 0, scheduled = 0, dispatched = 0, running = 0")
    lane.connection.execute(b"UPDATE runlane.queue SET occupied = 0")


@pytest.fixture
def still(connection: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A database of which only the test makes statistics."""
    tables = [f"runlane.{name}" for (name,) in connection.execute(TABLES.encode())]
    for table in tables:
        connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
    yield connection
    for table in tables:
        connection.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)".encode())


@pytest.mark.direct(reason="auto_explain is set for a session")
@pytest.mark.parametrize(
    "seen", [rows_that_are_gone, *(pytest.param(seen, marks=pytest.mark.thorough) for seen in (no_rows, hardly_a_row, rows_of_others))]
)
def test_a_run_of_a_burst_costs_the_same_whatever_the_statistics_saw(
    dsn: str, still: psycopg.Connection, lane: Lane, seen: Callable[[Lane], None]
) -> None:
    seen(lane)
    still.execute(b"VACUUM (ANALYZE, TRUNCATE off)")
    with closing(WatchedStorage(dsn)) as storage:
        watched = Lane(storage, still)
        for place, burst in enumerate(BURSTS):
            list(burst(watched, f"first-{place}", FEW))

        found = [burst for burst in BURSTS if walks_of(burst, watched, storage.session, burst.__name__)]
        # A plan that is turned round is kept, and shows again. What a passing snapshot, as of an analysis of the catalog, kept from
        # being vacuumed is visited too, and does not.
        walks = [walk for burst in found for walk in walks_of(burst, watched, storage.session, f"again-{burst.__name__}")]

    assert walks == []


def walks_of(burst: Burst, lane: Lane, session: WatchedSession, queue: str) -> list[tuple[str, int, str]]:
    """The statements that visit too much: the burst, rows a run, the beginning of the statement."""
    steps = burst(lane, queue, BURST)
    count = next(steps)
    with session.watching():
        list(steps)
    assert session.rows
    return [
        (burst.__name__, rows // count, text[:200])
        for text, rows in session.rows.items()
        if rows > (EACH + COUNTERS * ("counters_v1" in text)) * count
    ]
