"""What users of other queues reported, as tests of dispatch, limits and fairness; docs/reports.md names every report and its tests.

S and P with a number: the scheduling scenarios and the peers' reports as the issues that asked for these tests count them.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import psycopg
import pytest

from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue, Throttle
from runlane.domain.run import Status
from tests.postgres.factories import LEASE, Lane, at_once, ids, new_run, settlement
from tests.postgres.invariants import highest_occupancy, queue_slots

pytestmark = pytest.mark.postgres
NO_DELAY = timedelta(0)


def test_s1_a_throttle_of_three_lets_three_start_at_once_and_not_one(lane: Lane) -> None:
    """inngest#1460: a limit below ten admitted one. Here the burst says how many may start together, one of them in its turn."""
    lane.queues(Queue("work", throttle=Throttle(1, "1h", burst=2)))
    woken = lane.trigger(*[new_run("work")] * 5).wakeups
    assert len(lane.claim(*ids(woken)).claims) == 3


def test_s2_a_key_alone_uses_all_capacity_and_a_second_gets_its_share_with_the_next_slots(lane: Lane) -> None:
    """inngest#4345: 400 runs of a key waited while half of the capacity was idle."""
    lane.queues(Queue("work", total_limit=10))
    alone = lane.trigger(*[new_run("work", concurrency_key="first")] * 400).wakeups
    assert len(alone) == 10
    second = [run.run_id for run in lane.trigger(*[new_run("work", concurrency_key="second")] * 2).runs]
    freed = [ids(lane.succeed(lane.claim_one(run_id)).wakeups) for run_id in ids(alone)[:4]]
    assert {*second} < {run_id for woken in freed for run_id in woken}


def test_s13_a_thousand_throttled_keys_do_not_hold_back_work_that_goes_on(lane: Lane) -> None:
    """inngest PR#3446: backlogs that wait for their throttle starved runs that had begun."""
    lane.queues(Queue("work", throttle=Throttle(1, "1h", burst=1), dispatch_window=5_000))
    keys = [f"k{place}" for place in range(1_000)]
    mine = lane.claim_one(lane.trigger_one("work", concurrency_key="mine"))
    woken = lane.trigger(*(new_run("work", concurrency_key=key) for key in keys for _ in range(3))).wakeups
    lane.succeed(*lane.claim(*ids(woken)).claims)
    assert lane.value("SELECT count(*) FROM runlane.partition WHERE state = 't'") == 1_000
    lane.queues(Queue("work", throttle=Throttle(1, "1h", burst=1), total_limit=1))
    (hint,) = lane.settle(settlement(mine, OutcomeKind.RELEASED, delay=NO_DELAY)).wakeups
    assert hint.run_id == mine.run_id
    assert lane.claim_one(mine.run_id).attempt == 2


ACCOUNT_WITH_MANY_KEYS = """
INSERT INTO runlane.tenant (queue_id, name, ready) SELECT queue_id, 't' || g, true FROM runlane.queue, generate_series(0, 1999) g;
INSERT INTO runlane.partition (queue_id, tenant_id, tenant, concurrency_key, state, waiting)
SELECT queue_id, tenant_id, name, 'k' || g, 'r', CASE name WHEN 't0' THEN 1 ELSE 3 END
FROM runlane.tenant CROSS JOIN LATERAL generate_series(1, CASE name WHEN 't0' THEN 40000 ELSE 1 END) g;
INSERT INTO runlane.waiting
SELECT partition_id, now() - interval '1 hour', runlane.new_run_id_v1(now(), n), queue_id, now(), 0, 'queued', 0, 0, 1, 0
FROM runlane.partition CROSS JOIN LATERAL generate_series(1, waiting) n WHERE tenant <> 't0' OR length(concurrency_key) = 2;
ANALYZE runlane.tenant, runlane.partition, runlane.waiting
"""


@pytest.mark.parametrize("route", [(18, False)], indirect=True)
def test_s37_an_account_of_forty_thousand_keys_gets_one_share_of_two_thousand(lane: Lane) -> None:
    """trigger.dev#2617: an account took everything by having many keys. Rows are made up, without runs behind them."""
    lane.queues(Queue("work", dispatch_window=4_000))
    lane.connection.execute(ACCOUNT_WITH_MANY_KEYS.encode())
    lane.storage.triggers.dispatch(["work"])
    shares = Counter(
        name for (name,) in lane.connection.execute("SELECT tenant FROM runlane.dispatch JOIN runlane.partition USING (partition_id)")
    )
    assert shares.total() == 4_000
    assert shares == dict.fromkeys(shares, 2)
    lane.connection.execute("TRUNCATE runlane.waiting, runlane.partition, runlane.tenant, runlane.dispatch, runlane.event")
    lane.connection.execute("UPDATE runlane.queue_counter SET waiting = 0, dispatched = 0")


def test_s38_a_completion_told_ten_times_frees_one_slot(lane: Lane, other_storage: PostgresStorage) -> None:
    """solid_queue#689, #761: after a crash a retried completion released twice, and a limit of one ran eleven."""
    lane.queues(Queue("work", concurrency_limit=1, total_limit=2))
    lane.trigger(*[new_run("work", concurrency_key="k")] * 20)
    (lost,) = lane.storage.deliveries.claim_oldest(["work"], limit=1, lease_for=LEASE, worker="crashes").claims
    lane.age_lease(lost.run_id)
    for told in range(10):
        (claim,) = lane.storage.deliveries.claim_oldest(["work"], limit=1, lease_for=LEASE, worker="w").claims or (lost,)
        settled = at_once(
            lambda claim=claim: lane.succeed(claim),
            lambda claim=claim: other_storage.deliveries.settle_runs([settlement(claim)]),
            lambda: other_storage.deliveries.settle_runs([settlement(lost, OutcomeKind.LEASE_EXPIRED, delay=NO_DELAY)]),
        )
        assert sum(len(batch.settled) for batch in settled) == 1, told
    assert highest_occupancy(lane.connection, "work") == 1
    assert {occupied for _, occupied in queue_slots(lane.connection, "work")} == {0, 1}


def test_p21_a_saturated_key_at_the_front_starves_no_other(lane: Lane) -> None:
    """pg-boss#756: the oldest thousand runs belonged to a group at its limit, and nobody behind them was found."""
    lane.queues(Queue("work", concurrency_limit=1))
    lane.trigger(*[new_run("work", concurrency_key="saturated", priority=600)] * 1_000)
    others = lane.trigger(*(new_run("work", concurrency_key=f"other{place}") for place in range(20)))
    assert ids(others.wakeups) == [run.run_id for run in others.runs]


def test_p23_runs_that_commit_in_the_other_order_are_neither_lost_nor_too_many(
    lane: Lane, server: LocalPostgres, dsn: str, storage: PostgresStorage
) -> None:
    """hatchet#4778: ids were given at insert and rows seen at commit, so that four ran where two might."""
    lane.queues(Queue("work", concurrency_limit=2))
    with psycopg.connect(dsn) as slow, psycopg.connect(dsn) as quick:
        early = [run.run_id for run in storage.triggers.record_runs(slow, [new_run("work")] * 3).runs]
        late = [run.run_id for run in storage.triggers.record_runs(quick, [new_run("work")] * 3).runs]
        quick.commit()
        assert ids(storage.triggers.dispatch(["work"])) == late[:2]
        slow.commit()
        assert storage.triggers.dispatch(["work"]) == ()
    done = lane.drain(lane.succeed(*lane.claim(*late[:2]).claims).wakeups)
    assert done == [*early, late[2]]
    assert highest_occupancy(lane.connection, "work") == 2


@pytest.mark.parametrize("key", ["*", "%", " ", "{}", "a:b", "'", '"', "\\", "é", "k" * 255])
def test_p24_no_name_of_a_key_strands_its_queue(lane: Lane, key: str) -> None:
    """trigger.dev#4628: a key named * stranded its queue."""
    lane.queues(Queue("work", concurrency_limit=1))
    runs = lane.trigger(*[new_run("work", tenant=key, concurrency_key=key)] * 3, new_run("work"))
    lane.drain(runs.wakeups)
    assert {lane.status(run.run_id) for run in runs.runs} == {Status.SUCCEEDED}


def test_p24_a_key_of_its_own_bypasses_no_total_limit(lane: Lane) -> None:
    """trigger.dev#3558: runs with a key did not count."""
    lane.queues(Queue("work", concurrency_limit=1, total_limit=3))
    runs = lane.trigger(*(new_run("work", tenant=f"t{place % 2}", concurrency_key=f"k{place}") for place in range(10)))
    assert len(runs.wakeups) == 3


def test_p24_a_waiting_parent_holds_no_slot_that_its_child_needs(lane: Lane) -> None:
    """trigger.dev#1272: a parent that waited for its child kept the only slot."""
    lane.queues(Queue("work", concurrency_limit=1))
    parent = lane.claim_one(lane.trigger_one("work"))
    child = lane.trigger_one("work")
    assert ids(lane.settle(settlement(parent, OutcomeKind.RELEASED, delay=timedelta(hours=1))).wakeups)[-1] == child
