"""Rows that come and go are vacuumed at once, rows that stay are updated in place, and what must stay dead stands in nobody's way."""

from __future__ import annotations

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.queue import Queue
from tests.postgres.factories import LEASE, Lane, ids, new_run, settlement

pytestmark = pytest.mark.postgres
HOT = ("dispatch", "dispatch_floor", "inbox", "lease", "partition", "queue", "queue_counter", "singleton_key", "successor", "tenant")
LARGE = ("idempotency_key", "timer", "waiting")


def test_every_table_whose_rows_come_and_go_is_vacuumed_after_few_of_them(lane: Lane) -> None:
    found = {
        name: dict(option.split("=") for option in options or ())
        for name, options in lane.connection.execute(
            "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'runlane'::regnamespace AND relname = ANY (%s)",
            ([*HOT, *LARGE],),
        )
    }
    assert sorted(found) == sorted([*HOT, *LARGE])
    for name, options in found.items():
        assert float(options["autovacuum_vacuum_scale_factor"]) <= (0 if name in HOT else 0.02), name
        assert int(options["autovacuum_vacuum_threshold"]) <= 5000, name
        assert options["autovacuum_vacuum_cost_delay"] == "0", name


def test_counters_and_queue_rows_are_updated_in_place(lane: Lane, dsn: str) -> None:
    """Eight of ten at least: a counter begins its next turn now and then, which is part of its key."""
    lane.queues(Queue("total", total_limit=50))
    busy = PostgresStorage(dsn)
    for _ in range(40):
        batch = busy.triggers.trigger_runs([new_run("total") for _ in range(10)], eager=True)
        claimed = busy.deliveries.claim_runs(ids(batch.wakeups), lease_for=LEASE, worker="w")
        busy.deliveries.settle_runs([settlement(claim) for claim in claimed.claims])
    busy.close()
    for table in ("queue_counter", "queue"):
        updated, in_place = lane.connection.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'runlane' AND relname = %s", (table,)
        ).fetchone() or (0, 0)
        assert updated >= 80, table
        assert in_place >= 0.8 * updated, table


def test_a_floor_above_what_waits_hides_nothing_and_is_lowered(lane: Lane) -> None:
    lane.queues(Queue("free"))
    waiting = ids(lane.trigger(*(new_run("free") for _ in range(3))).runs)
    lane.connection.execute("INSERT INTO runlane.dispatch_floor SELECT queue_id, 1000000000 FROM runlane.queue")
    claimed = lane.storage.deliveries.claim_oldest(["free"], limit=10, lease_for=LEASE, worker="w").claims
    assert sorted(ids(claimed)) == sorted(waiting)
    assert lane.value("SELECT count(*) FROM runlane.dispatch_floor f WHERE f.dispatch_seq >= 1000000000") == 0


def test_a_floor_follows_what_was_found_at_a_distance(lane: Lane) -> None:
    """Shortly below, as a transaction that began before may commit later."""
    lane.queues(Queue("free"))
    lane.connection.execute("SELECT runlane.move_floor_v1(array_agg(queue_id), ARRAY[1000], false) FROM runlane.queue")
    lane.connection.execute("SELECT runlane.move_floor_v1(array_agg(queue_id), ARRAY[900], false) FROM runlane.queue")
    assert lane.value("SELECT max(dispatch_seq) FROM runlane.dispatch_floor") == 744
    lane.connection.execute("SELECT runlane.move_floor_v1(array_agg(queue_id), ARRAY[300], true) FROM runlane.queue")
    assert lane.value("SELECT max(dispatch_seq) FROM runlane.dispatch_floor") == 44


def test_a_look_from_the_very_beginning_leaves_one_floor(lane: Lane) -> None:
    lane.queues(Queue("free"), Queue("other"))
    for place in (1000, 2000, 3000):
        lane.connection.execute(
            "SELECT runlane.move_floor_v1(array_agg(queue_id), ARRAY[%s, %s]::bigint[], false) FROM runlane.queue", (place,) * 2
        )
    lane.connection.execute("SELECT runlane.move_floor_v1(array_agg(queue_id), ARRAY[4000], true) FROM runlane.queue WHERE name = 'free'")
    rows = lane.connection.execute(
        "SELECT q.name, array_agg(f.dispatch_seq) FROM runlane.dispatch_floor f JOIN runlane.queue q USING (queue_id) GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert [(name, sorted(seqs)) for name, seqs in rows] == [("free", [2744, 3744]), ("other", [744, 1744, 2744])]


def test_counters_of_any_turn_are_counted_once(lane: Lane) -> None:
    lane.queues(Queue("one", concurrency_limit=1))
    for turn in range(5):
        lane.trigger(new_run("one"))
        lane.connection.execute("UPDATE runlane.queue_counter SET turn = turn + %s", (turn,))
    seen = lane.connection.execute(
        "SELECT sum(c.waiting), sum(c.dispatched) FROM runlane.queue q, runlane.counters_v1(q.queue_id) c"
    ).fetchone()
    assert seen == (4, 1)
