"""G8: what cannot run leaves the scan; the cost of a dispatch is counted in buffers, which no noise can touch."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import psycopg
import pytest

from runlane.adapters.postgres.rows import encode_runs
from runlane.domain.queue import Queue, Throttle
from tests.postgres.factories import Lane, ids, new_run

pytestmark = pytest.mark.postgres
MANY, SOME, FEW = 20_000, 1_000, 100
PINS = ("enable_seqscan = off", "enable_hashjoin = off", "enable_mergejoin = off", "jit = off", "plan_cache_mode = force_generic_plan")
DISPATCH_TEN = (
    "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT count(*) FROM runlane.queue q, runlane.dispatch_fairly_v1(q, 10, clock_timestamp()) e"
    " WHERE q.name = 'work'"
)
TRIGGER = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT count(*) FROM runlane.trigger_runs_v1(%s::json, true)"
FILL = """
INSERT INTO runlane.partition (queue_id, tenant_id, tenant, concurrency_key, state, waiting, occupied, vt)
SELECT 1, t.tenant_id, t.name, 'k' || g, CASE WHEN g < %(blocked)s THEN 'b' ELSE 'r' END, %(each)s,
       CASE WHEN g < %(blocked)s THEN 2 ELSE 0 END, g * 7919 %% 1000
FROM generate_series(0, %(partitions)s - 1) g
LEFT JOIN runlane.tenant t ON %(tenants)s > 0 AND t.name = 't' || g %% greatest(%(tenants)s, 1)
"""
WAIT = """
INSERT INTO runlane.waiting
SELECT p.partition_id, now() - interval '1 hour' + g * interval '1 ms', runlane.new_run_id_v1(now(), g %% 4000), 1,
       now(), 0, 'queued', 0, 0, 1, 0
FROM runlane.partition p, generate_series(1, %(each)s) g
"""


@pytest.fixture
def scratch(lane: Lane) -> Iterator[Lane]:
    """A queue whose rows are made up, without runs behind them; they are removed before the counts are compared."""
    lane.queues(Queue("work", concurrency_limit=2, dispatch_window=1_000_000))
    yield lane
    lane.connection.execute("TRUNCATE runlane.waiting, runlane.partition, runlane.tenant, runlane.dispatch, runlane.event")
    lane.connection.execute("UPDATE runlane.queue_counter SET waiting = 0, dispatched = 0")


def buffers(lane: Lane, partitions: int, *, each: int = 2, blocked: int = 0, tenants: int = 0, then: str = "") -> float:
    """The median buffers of a dispatch of ten."""
    connection = lane.connection
    connection.execute("TRUNCATE runlane.waiting, runlane.partition, runlane.tenant, runlane.dispatch, runlane.event")
    connection.execute(
        "INSERT INTO runlane.tenant (queue_id, name, ready) SELECT 1, 't' || g, true FROM generate_series(0, %s - 1) g", (tenants,)
    )
    asked = {"partitions": partitions, "each": each, "blocked": blocked, "tenants": tenants}
    connection.execute(FILL.encode(), asked)
    connection.execute(WAIT.encode(), asked)
    connection.execute(then.encode())
    connection.execute("VACUUM ANALYZE runlane.partition, runlane.waiting, runlane.tenant")
    for pin in PINS:
        connection.execute(f"SET {pin}".encode())
    return median([explained_buffers(connection, DISPATCH_TEN) for _ in range(15)][3:])


def explained_buffers(connection: psycopg.Connection, statement: str, *parameters: str) -> int:
    row = connection.execute(statement.encode(), parameters).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_a_dispatch_costs_hardly_more_with_many_partitions(scratch: Lane) -> None:
    assert buffers(scratch, MANY) <= 1.5 * buffers(scratch, FEW)


def test_a_dispatch_costs_hardly_more_with_many_tenants(scratch: Lane) -> None:
    assert buffers(scratch, MANY, tenants=200) <= 1.5 * buffers(scratch, FEW, tenants=10)


def test_a_dispatch_costs_hardly_more_with_a_long_backlog(scratch: Lane) -> None:
    assert buffers(scratch, FEW, each=500) <= 1.2 * buffers(scratch, FEW, each=10)


def test_a_dispatch_costs_nothing_for_partitions_that_are_blocked(scratch: Lane) -> None:
    assert buffers(scratch, MANY, blocked=MANY - MANY // 100) <= 1.2 * buffers(scratch, MANY)


def test_a_dispatch_costs_nothing_for_partitions_that_are_throttled(scratch: Lane) -> None:
    scratch.queues(Queue("work", concurrency_limit=2, dispatch_window=1_000_000, throttle=Throttle(1000, "1s")))
    asleep = "UPDATE runlane.partition SET state = 't', occupied = 0, ready_at = now() + interval '1 hour' WHERE state = 'b'"
    assert buffers(scratch, SOME, blocked=SOME - SOME // 20, then=asleep) <= 1.2 * buffers(scratch, SOME)


def test_a_key_leaves_the_scan_when_it_is_blocked_and_comes_back(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    states = []

    def look() -> None:
        states.append(lane.value("SELECT state::text FROM runlane.partition WHERE concurrency_key = 'k'"))

    run_id = lane.trigger_one("work", concurrency_key="k")
    look()
    waiting = lane.trigger_one("work", concurrency_key="k")
    look()
    lane.storage.queues.pause("work", tenant=None, concurrency_key="k", actor=None)
    look()
    lane.storage.queues.resume("work", tenant=None, concurrency_key="k", actor=None)
    look()
    lane.drain(lane.succeed(lane.claim_one(run_id)).wakeups)
    look()
    assert states == ["e", "b", "p", "b", "e"]
    assert lane.events(waiting)[-1] == "run.succeeded"


def test_a_blocked_partition_keeps_its_neighbours_running(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1, total_limit=2))
    lane.trigger(*[new_run("work", concurrency_key="busy")] * 50)
    other = lane.trigger(new_run("work", concurrency_key="quiet"))
    assert len(ids(other.wakeups)) == 1
    assert lane.value("SELECT state::text FROM runlane.partition WHERE concurrency_key = 'busy'") == "b"


@pytest.mark.parametrize("shape", ["keys", "tenants", "one tenant"])
def test_four_times_as_many_new_keys_in_one_trigger_cost_about_four_times(lane: Lane, shape: str) -> None:
    """A statement that walks over what it has itself written costs sixteen times."""

    def cost(queue: str, count: int) -> int:
        lane.queues(Queue(queue, concurrency_limit=1))
        tenants = {"keys": 0, "tenants": count // 4, "one tenant": 1}[shape]
        runs = [new_run(queue, tenant=f"t{place % tenants}" if tenants else None, concurrency_key=f"k{place}") for place in range(count)]
        return explained_buffers(lane.connection, TRIGGER, encode_runs(runs))

    assert cost("large", 2_000) / cost("small", 500) < 6
