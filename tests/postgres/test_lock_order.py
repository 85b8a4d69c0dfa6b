"""Who waits for whom, each circle that was ever closed taken apart by hand: with writers held where they would have closed it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import psycopg
import pytest

from runlane.adapters.postgres.rows import encode_settlements
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from tests.postgres.factories import LEASE, Lane, at_once, new_run, settlement
from tests.waiting import PATIENCE

pytestmark = pytest.mark.postgres


@contextmanager
def strangers(dsn: str, count: int) -> Iterator[list[PostgresStorage]]:
    opened = [PostgresStorage(dsn) for _ in range(count)]
    yield opened
    for storage in opened:
        storage.close()


def test_more_writers_than_counter_shards_do_not_wait_for_each_other_in_a_circle(lane: Lane, dsn: str) -> None:
    """Whoever holds the queue row needs no shard any more; here all shards belong to triggers that wait for that row."""
    lane.queues(Queue("work", total_limit=1))
    (first,) = lane.trigger(new_run("work")).wakeups
    claim = lane.claim_one(first.run_id)
    with psycopg.connect(dsn) as holder, strangers(dsn, 32) as waiting, ThreadPoolExecutor(32) as pool:
        holder.execute("SELECT runlane.enter_queue_v1(queue_id) FROM runlane.queue")
        triggers = [pool.submit(one.triggers.trigger_runs, [new_run("work")], eager=True) for one in waiting]
        lane.await_waiters(32)
        sent = encode_settlements([settlement(claim)])
        holder.execute("SELECT runlane.settle_runs_v1(%s, %s)", (sent["settlements"], sent["ids"]))
        holder.commit()
        for trigger in triggers:
            trigger.result(timeout=PATIENCE)


def test_triggers_that_wait_for_a_key_of_an_open_transaction_keep_nobody_from_counting(lane: Lane, dsn: str) -> None:
    """The caller may be busy with anything; as many wait for its key as there are counter shards."""
    lane.queues(Queue("work"))
    claim = lane.claim_one(lane.trigger_one("work"))
    keyed = new_run("work", singleton_key="s")
    with strangers(dsn, 32) as waiting, ThreadPoolExecutor(33) as pool, psycopg.connect(dsn) as caller:
        active = lane.storage.triggers.record_runs(caller, [keyed]).runs[0].run_id
        triggers = [pool.submit(one.triggers.trigger_runs, [keyed], eager=True) for one in waiting]
        lane.await_waiters(32)
        settled = pool.submit(lane.succeed, claim).result(timeout=PATIENCE)
        assert settled.refused == ()
        caller.commit()
        assert {trigger.result(timeout=PATIENCE).runs[0].run_id for trigger in triggers} == {active}


def test_a_hand_over_that_finds_its_partition_changed_makes_no_other_one(lane: Lane, dsn: str, other_storage: PostgresStorage) -> None:
    """It holds that partition, which a trigger waits for that has made the other one."""
    lane.queues(Queue("work", concurrency_limit=1))
    active = lane.trigger_one("work", concurrency_key="old")
    claim = lane.claim_one(active)
    with psycopg.connect(dsn) as canceller, ThreadPoolExecutor(2) as pool:
        canceller.execute("SELECT runlane.cancel_run_v1(%s, NULL, NULL)", (active,))
        ending = pool.submit(other_storage.deliveries.settle_and_claim, [settlement(claim)], ["work"], limit=1, lease_for=LEASE, worker="w")
        lane.await_waiters(1)
        recorded = lane.trigger(new_run("work", concurrency_key="new"), eager=False).runs[0].run_id
        triggering = pool.submit(lane.trigger, *(new_run("work", concurrency_key=key) for key in ("new", "old")))
        lane.await_waiters(2)
        canceller.commit()
        ending.result(timeout=PATIENCE)
        triggering.result(timeout=PATIENCE)
    assert lane.status(active) is Status.CANCELLED
    lane.storage.triggers.dispatch(["work"])
    assert lane.status(recorded) is Status.QUEUED


def test_two_late_wakeups_make_new_keys_known_in_one_order(lane: Lane, other_storage: PostgresStorage) -> None:
    """Each folds the inbox and fires a timer: together one list of keys, so that nobody inserts backwards."""
    lane.queues(Queue("work", dispatch_window=5_000))
    for place in range(2):
        pairs = [(f"a{place}", f"b{place}"), (f"b{place}", f"a{place}")]
        timers = [lane.trigger_one("work", concurrency_key=late, delay=timedelta(hours=1)) for _, late in pairs]
        for timer in timers:
            lane.age_timer(timer)
        for recorded, _ in pairs:
            lane.trigger(*(new_run("work", concurrency_key=recorded) for _ in range(1_000)), eager=False)
        first, second = timers
        at_once(partial(lane.claim, first), partial(other_storage.deliveries.claim_runs, [second], lease_for=LEASE, worker="o"))


def test_a_late_result_does_not_wait_for_a_timer_that_is_firing(lane: Lane, dsn: str, other_storage: PostgresStorage) -> None:
    """It holds its neighbour's partition, which the tick that fires the timer waits for; so it gives way, and is tried again."""
    lane.queues(Queue("work", concurrency_limit=2))
    late, fresh = (lane.claim_one(wakeup.run_id) for wakeup in lane.trigger(*[new_run("work")] * 2).wakeups)
    lane.settle(settlement(late, OutcomeKind.RETRY, delay=timedelta(hours=1)))
    lane.age_timer(late.run_id)
    sent = encode_settlements([settlement(late), settlement(fresh)])
    with psycopg.connect(dsn) as settler, ThreadPoolExecutor(1) as pool:
        settler.execute("SELECT runlane.lock_partitions_v1(ARRAY(SELECT partition_id FROM runlane.partition))")
        tick = pool.submit(other_storage.maintenance.due_timers, look_ahead=timedelta(minutes=1), limit=10)
        lane.await_waiters(1)
        with pytest.raises(psycopg.Error) as caught:
            settler.execute("SELECT runlane.settle_runs_v1(%s, %s)", (sent["settlements"], sent["ids"]))
        settler.rollback()
        assert caught.value.sqlstate == "RL002"
        assert tick.result(timeout=PATIENCE).count == 1
    assert lane.settle(settlement(late), settlement(fresh)).refused == (late.run_id,)
    assert "run.result_refused" in lane.events(late.run_id)
