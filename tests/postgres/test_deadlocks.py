"""Transactions that want the same things in opposite order. A deadlock would surface as an error of one of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
import pytest

from runlane.adapters.postgres.rows import encode_settlements
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import ConflictError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import TERMINAL, Status
from runlane.ports.operations import PruneFilter
from runlane.ports.stores import NewRun
from tests.postgres.factories import LEASE, Lane, T, at_once, children, ids, new_run, settlement

pytestmark = pytest.mark.postgres
ROUNDS = 12
Move = Callable[[PostgresStorage, random.Random], object]


@pytest.fixture(params=["unlimited", "limit2", "total5", "tenants"])
def shape(request: pytest.FixtureRequest, lane: Lane) -> str:
    limits = {"limit2": (2, None), "total5": (None, 5), "tenants": (2, None)}.get(request.param, (None, None))
    lane.queues(*(Queue(name, concurrency_limit=limits[0], total_limit=limits[1], dispatch_window=20) for name in ("a", "b")))
    return str(request.param)


@contextmanager
def storages(dsn: str, count: int) -> Iterator[list[PostgresStorage]]:
    opened = [PostgresStorage(dsn) for _ in range(count)]
    yield opened
    for storage in opened:
        storage.close()


def contend(dsn: str, *moves: Move, rounds: int = ROUNDS) -> None:
    """Every move in a process of its own (as far as Postgres can tell), round after round from a common start."""
    with storages(dsn, len(moves)) as opened:
        rngs = [random.Random(place) for place in range(len(moves))]
        for _ in range(rounds):
            at_once(*(lambda m=move, s=storage, r=rng: m(s, r) for move, storage, rng in zip(moves, opened, rngs, strict=True)))


def runs_of(rng: random.Random, shape: str, *, backwards: bool = False, delay: timedelta | None = None) -> list[NewRun]:
    found = [
        new_run(queue, concurrency_key=f"k{key}", tenant=f"t{key % 3}" if shape == "tenants" else None, delay=delay)
        for queue in ("a", "b")
        for key in range(8)
    ]
    return found[::-1] if backwards else found


def trigger(shape: str, *, backwards: bool = False, delay: timedelta | None = None) -> Move:
    return lambda storage, rng: storage.triggers.trigger_runs(runs_of(rng, shape, backwards=backwards, delay=delay), eager=True)


def drain(storage: PostgresStorage, rng: random.Random) -> None:
    """Claim a handful from both queues and end them in any way."""
    claimed = storage.deliveries.claim_oldest(["a", "b"], limit=12, lease_for=LEASE, worker="w")
    kinds = [OutcomeKind.SUCCEEDED, OutcomeKind.SUCCEEDED, OutcomeKind.RELEASED, OutcomeKind.RETRY, OutcomeKind.HANDED_BACK]
    ends = [settlement(claim, rng.choice(kinds), delay=timedelta(0)) for claim in claimed.claims]
    rng.shuffle(ends)
    storage.deliveries.settle_runs(ends)


def standing(dsn: str, *tables: str) -> list[str]:
    query = " UNION ALL ".join(f"(SELECT run_id::text FROM runlane.{table} LIMIT 30)" for table in tables)
    with psycopg.connect(dsn) as connection:
        return [run_id for (run_id,) in connection.execute(query.encode())]


def claim_anything(dsn: str, *, backwards: bool = False) -> Move:
    """Wakeups with and without dispatch rows in one batch, as SQS mixes them."""

    def move(storage: PostgresStorage, rng: random.Random) -> None:
        found = sorted(standing(dsn, "dispatch", "waiting", "timer"), reverse=backwards)
        picked = rng.sample(found, min(10, len(found)))
        claimed = storage.deliveries.claim_runs(picked, lease_for=LEASE, worker="w")
        storage.deliveries.settle_runs([settlement(claim) for claim in claimed.claims])

    return move


def cancel_anything(dsn: str) -> Move:
    def move(storage: PostgresStorage, rng: random.Random) -> None:
        for run_id in rng.sample(found := standing(dsn, "dispatch", "waiting", "timer", "lease", "inbox", "successor"), min(3, len(found))):
            storage.runs.cancel_run(run_id, actor=None, reason=None)

    return move


def operate_on_anything(dsn: str, *, backwards: bool = False) -> Move:
    """What people do to many runs at once, and to single ones."""

    def move(storage: PostgresStorage, rng: random.Random) -> None:
        found = sorted(standing(dsn, "dispatch", "waiting", "timer", "lease", "inbox"), reverse=backwards)
        some = rng.sample(found, min(4, len(found)))
        give_way(lambda: storage.operations.cancel_runs([RunId(run_id) for run_id in some], actor=None, reason=None), "run_moving")
        for run_id in rng.sample(found, min(3, len(found))):
            at = datetime.now(UTC) + timedelta(seconds=rng.choice([-1, 60]))
            give_way(partial(storage.operations.reschedule_run, RunId(run_id), at, actor=None), "run_moving")
        for place in range(2):
            run_now(storage, "ab"[place], f"k{place}")

    return move


def run_now(storage: PostgresStorage, queue: str, key: str) -> None:
    new = new_run(queue, concurrency_key=key)
    started = give_way(lambda: storage.operations.run_now(new, lease_for=LEASE, worker="w"), "queue_at_capacity")
    if started is not None and started.claim is not None:
        storage.deliveries.settle_runs([settlement(started.claim, OutcomeKind.FAILED)])


def give_way(move: Callable[[], T], code: str) -> T | None:
    """None if it is refused with this code; a deadlock has another."""
    try:
        return move()
    except ConflictError as error:
        if error.code != code:
            raise
        return None


def make_again(dsn: str, *, backwards: bool = False) -> Move:
    """Retries and reruns, both over both queues, and then pruning what they came from."""

    def move(storage: PostgresStorage, rng: random.Random) -> None:
        found = sorted(standing(dsn, "outcome"), reverse=backwards)
        for only_failed in (True, False):
            picked = rng.sample(found, min(5, len(found)))
            runs = [run for run_id in picked for run in children(RunId(run_id), only_failed=only_failed, queue=rng.choice("ab"))]
            storage.operations.rerun_runs(runs, only_failed=only_failed)
        storage.operations.prune_runs(PruneFilter(timedelta(0), TERMINAL), after=None, limit=10, dry_run=False)

    return move


def maintain(storage: PostgresStorage, rng: random.Random) -> None:
    storage.maintenance.due_timers(look_ahead=timedelta(minutes=3), limit=100)
    storage.maintenance.fold_recorded(limit=100)
    storage.maintenance.expire_dispatches(limit=100)
    storage.maintenance.expire_deadlines(limit=100)
    storage.maintenance.dispatch_queues(limit=100)
    storage.maintenance.claim_unpublished(limit=100)


def test_two_callers_triggering_in_opposite_order(dsn: str, shape: str) -> None:
    contend(dsn, trigger(shape), trigger(shape, backwards=True), rounds=10)


def test_triggering_against_settling_in_reverse(dsn: str, shape: str) -> None:
    contend(dsn, trigger(shape), trigger(shape, backwards=True), drain, drain)


def test_claims_of_overlapping_batches_in_opposite_order(lane: Lane, dsn: str, other_storage: PostgresStorage, shape: str) -> None:
    for _ in range(ROUNDS):
        found = ids(lane.trigger(*runs_of(random.Random(), shape)).wakeups)
        first, second = at_once(
            lambda found=found: lane.claim(*found),
            lambda found=found: other_storage.deliveries.claim_runs(found[::-1], lease_for=LEASE, worker="other"),
        )
        assert sorted(ids([*first.claims, *second.claims])) == sorted(found)
        lane.succeed(*first.claims, *second.claims)


def test_claims_with_and_without_dispatch_rows_against_settling_and_giving_back(dsn: str, lane: Lane, shape: str) -> None:
    lane.trigger(*runs_of(random.Random(), shape) * 3)
    contend(dsn, claim_anything(dsn), claim_anything(dsn, backwards=True), drain, trigger(shape), expire_all(dsn))


def expire_all(dsn: str) -> Move:
    def move(storage: PostgresStorage, rng: random.Random) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "UPDATE runlane.dispatch SET expires_at = now() - interval '1 second' WHERE run_id IN"
                " (SELECT run_id FROM runlane.dispatch ORDER BY run_id LIMIT 5 FOR UPDATE SKIP LOCKED)"
            )
        storage.maintenance.expire_dispatches(limit=100)

    return move


def test_cancelling_against_claim_and_settle(dsn: str, lane: Lane, shape: str) -> None:
    lane.trigger(*runs_of(random.Random(), shape) * 3)
    contend(dsn, cancel_anything(dsn), cancel_anything(dsn), claim_anything(dsn), drain, trigger(shape))


def test_cancelling_against_timers_that_fire(dsn: str, lane: Lane, shape: str) -> None:
    soon = timedelta(milliseconds=1)
    contend(dsn, cancel_anything(dsn), cancel_anything(dsn), maintain, trigger(shape, delay=soon), drain)


def test_cancelling_and_settling_against_pausing(dsn: str, lane: Lane, shape: str) -> None:
    def pause(storage: PostgresStorage, rng: random.Random) -> None:
        which = rng.choice([(None, None), (None, "k1"), ("t1", None), ("t1", "k1")])
        storage.queues.pause("a", tenant=which[0], concurrency_key=which[1], actor=None)
        storage.queues.resume("a", tenant=which[0], concurrency_key=which[1], actor=None)

    lane.trigger(*runs_of(random.Random(), shape) * 2)
    contend(dsn, pause, pause, cancel_anything(dsn), claim_anything(dsn), drain, trigger(shape), rounds=15)


def test_deadlines_of_two_ticks_against_settling(dsn: str, lane: Lane, shape: str) -> None:
    short = timedelta(milliseconds=1)

    def hurried(backwards: bool) -> Move:
        def move(storage: PostgresStorage, rng: random.Random) -> None:
            found = [NewRun(run.task, run.queue, "{}", tenant=run.tenant, concurrency_key=run.concurrency_key, finish_timeout=short)
                     for run in runs_of(rng, shape, backwards=backwards)]  # fmt: skip
            storage.triggers.trigger_runs(found, eager=True)
            storage.maintenance.expire_deadlines(limit=100)

        return move

    contend(dsn, hurried(False), hurried(True), drain, drain, maintain)


def test_operators_against_workers_and_ticks(dsn: str, lane: Lane, shape: str) -> None:
    lane.trigger(*runs_of(random.Random(), shape) * 2)
    moves = [operate_on_anything(dsn), operate_on_anything(dsn, backwards=True), make_again(dsn), make_again(dsn, backwards=True)]
    contend(dsn, *moves, drain, maintain, claim_anything(dsn), trigger(shape))


def test_folding_against_settling_and_joined_callers(dsn: str, lane: Lane, shape: str) -> None:
    def join(storage: PostgresStorage, rng: random.Random) -> None:
        with psycopg.connect(dsn) as connection:
            storage.triggers.record_runs(connection, runs_of(rng, shape))
            storage.triggers.record_runs(connection, runs_of(rng, shape, delay=timedelta(hours=1))[::-1])

    contend(dsn, join, join, maintain, maintain, drain, cancel_anything(dsn))


def test_keys_taken_in_opposite_order_against_everything_that_ends_runs(dsn: str, lane: Lane, shape: str) -> None:
    def keyed(rng: random.Random, *, backwards: bool) -> list[NewRun]:
        modes = ["latest", "cancel", "latest", "return"]
        found = [replace(run, singleton_key=f"s{place % 10}", singleton_mode=rng.choice(modes), start_timeout=timedelta(milliseconds=1))
                 for place, run in enumerate(runs_of(rng, shape))]  # fmt: skip
        return found[::-1] if backwards else found

    def succeed(backwards: bool) -> Move:
        return lambda storage, rng: storage.triggers.trigger_runs(keyed(rng, backwards=backwards), eager=True)

    def join(storage: PostgresStorage, rng: random.Random) -> None:
        with psycopg.connect(dsn) as connection:
            storage.triggers.record_runs(connection, keyed(rng, backwards=rng.random() < 0.5))
        storage.triggers.dispatch(["a", "b"])

    contend(dsn, succeed(False), succeed(True), join, drain, cancel_anything(dsn), claim_anything(dsn), maintain, rounds=15)


def test_more_writers_than_counter_shards_do_not_wait_for_each_other_in_a_circle(lane: Lane, dsn: str) -> None:
    """Whoever holds the queue row needs no shard any more; here all shards belong to triggers that wait for that row."""
    lane.queues(Queue("work", total_limit=1))
    (first,) = lane.trigger(new_run("work")).wakeups
    claim = lane.claim_one(first.run_id)
    with psycopg.connect(dsn) as holder, storages(dsn, 32) as waiting, ThreadPoolExecutor(32) as pool:
        holder.execute("SELECT runlane.enter_queue_v1(queue_id) FROM runlane.queue")
        triggers = [pool.submit(one.triggers.trigger_runs, [new_run("work")], eager=True) for one in waiting]
        while lane.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") < 32:
            time.sleep(0.01)
        sent = encode_settlements([settlement(claim)])
        holder.execute("SELECT runlane.settle_runs_v1(%s, %s)", (sent["settlements"], sent["ids"]))
        holder.commit()
        for trigger in triggers:
            trigger.result(timeout=10)


def test_triggers_that_wait_for_a_key_of_an_open_transaction_keep_nobody_from_counting(lane: Lane, dsn: str) -> None:
    """The caller may be busy with anything; as many wait for its key as there are counter shards."""
    lane.queues(Queue("work"))
    claim = lane.claim_one(lane.trigger_one("work"))
    keyed = new_run("work", singleton_key="s")
    with storages(dsn, 32) as waiting, ThreadPoolExecutor(33) as pool, psycopg.connect(dsn) as caller:
        active = lane.storage.triggers.record_runs(caller, [keyed]).runs[0].run_id
        triggers = [pool.submit(one.triggers.trigger_runs, [keyed], eager=True) for one in waiting]
        await_lock_waiters(lane, 32)
        settled = pool.submit(lane.succeed, claim).result(timeout=5)
        assert settled.refused == ()
        caller.commit()
        assert {trigger.result(timeout=10).runs[0].run_id for trigger in triggers} == {active}


def test_a_hand_over_that_finds_its_partition_changed_makes_no_other_one(lane: Lane, dsn: str, other_storage: PostgresStorage) -> None:
    """It holds that partition, which a trigger waits for that has made the other one."""
    lane.queues(Queue("work", concurrency_limit=1))
    active = lane.trigger_one("work", concurrency_key="old")
    claim = lane.claim_one(active)
    with psycopg.connect(dsn) as canceller, ThreadPoolExecutor(2) as pool:
        canceller.execute("SELECT runlane.cancel_run_v1(%s, NULL, NULL)", (active,))
        ending = pool.submit(other_storage.deliveries.settle_and_claim, [settlement(claim)], ["work"], limit=1, lease_for=LEASE, worker="w")
        await_lock_waiters(lane, 1)
        recorded = lane.trigger(new_run("work", concurrency_key="new"), eager=False).runs[0].run_id
        triggering = pool.submit(lane.trigger, *(new_run("work", concurrency_key=key) for key in ("new", "old")))
        await_lock_waiters(lane, 2)
        canceller.commit()
        ending.result(timeout=10)
        triggering.result(timeout=10)
    assert lane.status(active) is Status.CANCELLED
    lane.storage.triggers.dispatch(["work"])
    assert lane.status(recorded) is Status.QUEUED


def await_lock_waiters(lane: Lane, count: int) -> None:
    while lane.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") < count:
        time.sleep(0.005)


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
        while not lane.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"):
            time.sleep(0.01)
        with pytest.raises(psycopg.Error) as caught:
            settler.execute("SELECT runlane.settle_runs_v1(%s, %s)", (sent["settlements"], sent["ids"]))
        settler.rollback()
        assert caught.value.sqlstate == "RL002"
        assert tick.result(timeout=10).count == 1
    assert lane.settle(settlement(late), settlement(fresh)).refused == (late.run_id,)
    assert "run.result_refused" in lane.events(late.run_id)
