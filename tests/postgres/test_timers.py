"""Runs that are due later: never before their time, in the order when it has come, hinted at once and ahead."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.queue import Queue
from runlane.domain.records import RunFilter
from runlane.domain.run import Status
from runlane.ports.stores import PublishMark, PublishResult
from tests.postgres.factories import Lane, at_once, ids, new_run, settlement

pytestmark = pytest.mark.postgres
LOOK_AHEAD = timedelta(minutes=3)


@pytest.fixture(params=[None, 1], ids=["unlimited", "limit1"])
def work(request: pytest.FixtureRequest, lane: Lane) -> Lane:
    lane.queues(Queue("work", concurrency_limit=request.param))
    return lane


def tick(lane: Lane, limit: int = 100) -> list[str]:
    return ids(lane.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=limit).wakeups)


def test_a_delayed_run_is_scheduled_and_its_hint_carries_the_delay(work: Lane) -> None:
    batch = work.trigger(new_run("work", delay=timedelta(minutes=5), concurrency_key="k"))
    (hint,) = batch.wakeups
    assert (hint.hint, hint.delay, hint.concurrency_key) == (True, timedelta(minutes=5), "k")
    assert batch.runs[0].status is work.status(batch.runs[0].run_id) is Status.SCHEDULED
    assert tick(work) == []


ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")


@pytest.mark.direct
@pytest.mark.parametrize("zone", ZONES)
def test_a_delay_of_days_is_as_long_over_a_clock_change_of_the_database(lane: Lane, dsn: str, zone: str) -> None:
    """A day of Postgres has 23 or 25 hours there, and a run would start early."""
    lane.queues(Queue("work"))
    now = datetime.now(ZoneInfo(zone))
    offset = now.utcoffset()
    delay = next(timedelta(days=days) for days in range(1, 366) if (now + timedelta(days=days)).utcoffset() != offset)
    with closing(PostgresStorage(make_conninfo(dsn, options=f"-c timezone={zone}"))) as storage:
        abroad = Lane(storage, lane.connection)
        lengths = {"start_timeout": delay, "finish_timeout": delay}
        delayed = abroad.trigger_one("work", delay=delay, idempotency_key="k", idempotency_ttl=delay, **lengths)
        released, alike = ids(abroad.trigger(*[new_run("work", **lengths)] * 2).wakeups)
        abroad.settle(settlement(abroad.claim_one(released), OutcomeKind.RELEASED, delay=delay))
        with psycopg.connect(make_conninfo(dsn, options=f"-c timezone={zone}"), autocommit=True) as caller:
            options = json.dumps({"delay": f"{delay.days} days", "start_timeout": f"{delay.days} days"})
            (by_sql,) = caller.execute("SELECT runlane.trigger('t', '{}', 'work', %s)::text", (options,)).fetchone() or ()
        abroad.storage.triggers.dispatch(["work"])
    exactly = int(delay.total_seconds())
    for run_id in (delayed, by_sql):
        assert lane.value("SELECT extract(epoch FROM run_at - created_at)::int FROM runlane.run WHERE run_id = %s", run_id) == exactly
    event = (
        "SELECT extract(epoch FROM t.due_at - e.at)::int FROM runlane.timer t JOIN runlane.event e USING (run_id, seq) WHERE run_id = %s"
    )
    assert lane.value(event, released) == exactly
    for run_id in (delayed, alike, by_sql):
        deadline = "SELECT extract(epoch FROM max(d.at) - r.run_at)::int FROM runlane.deadline d JOIN runlane.run r USING (run_id)"
        assert lane.value(f"{deadline} WHERE run_id = %s GROUP BY r.run_at", run_id) == exactly


def test_a_run_at_is_kept_to_the_microsecond_and_a_past_one_is_now(work: Lane) -> None:
    at = datetime.now(UTC) + timedelta(hours=1, microseconds=7)
    past = datetime.now(UTC) - timedelta(days=1)
    future, now = work.trigger(new_run("work", run_at=at), new_run("work", run_at=past)).runs
    assert future.due_at == at
    assert now.status is Status.QUEUED
    assert now.due_at > past


def test_what_is_too_far_ahead_is_hinted_by_the_tick_that_looks_ahead_far_enough(work: Lane) -> None:
    run_id = work.trigger_one("work", delay=timedelta(hours=2))
    assert tick(work) == []
    work.connection.execute("UPDATE runlane.timer SET due_at = clock_timestamp() + interval '2 minutes'")
    (hint,) = work.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=10).wakeups
    assert (hint.run_id, hint.hint) == (run_id, True)
    assert timedelta(minutes=1) < hint.delay <= timedelta(minutes=2)
    assert tick(work) == []


def test_a_hint_that_could_not_be_sent_is_sent_by_the_tick(work: Lane) -> None:
    run_id = work.trigger_one("work", delay=timedelta(minutes=2))
    assert tick(work) == []
    work.storage.triggers.mark_published([PublishMark(PublishResult(run_id, published=False, hint=True))])
    assert tick(work) == [run_id]


def test_an_early_hint_starts_nothing_and_a_due_one_does(work: Lane) -> None:
    run_id = work.trigger_one("work", delay=timedelta(minutes=2))
    (refusal,) = work.claim(run_id).refusals
    assert refusal.reason == "not_due"
    work.age_timer(run_id)
    assert ids(work.claim(run_id).claims) == [run_id]


def test_a_lost_hint_is_made_good_by_the_tick(work: Lane) -> None:
    run_id = work.trigger_one("work", delay=timedelta(minutes=2))
    work.age_timer(run_id)
    assert tick(work) == [run_id]
    assert tick(work) == []
    assert work.claim_one(run_id).attempt == 1


@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.RELEASED])
def test_a_retry_and_a_release_hint_at_themselves(work: Lane, kind: OutcomeKind) -> None:
    claim = work.claim_one(work.trigger_one("work"))
    (hint,) = work.settle(settlement(claim, kind, delay=timedelta(minutes=1))).wakeups
    assert (hint.run_id, hint.hint, hint.delay) == (claim.run_id, True, timedelta(minutes=1))
    far = work.claim_one(work.trigger_one("work"))
    assert work.settle(settlement(far, kind, delay=timedelta(hours=1))).wakeups == ()


def test_a_timer_holds_no_slot(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    claim = lane.claim_one(lane.trigger_one("work"))
    lane.settle(settlement(claim, OutcomeKind.RELEASED, delay=timedelta(hours=1)))
    assert len(lane.trigger(new_run("work")).wakeups) == 1


def test_due_timers_are_taken_in_bounded_steps(work: Lane) -> None:
    runs = [work.trigger_one("work", concurrency_key=f"k{place}", delay=timedelta(hours=1)) for place in range(7)]
    for run_id in runs:
        work.age_timer(run_id)
    steps = [work.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=3) for _ in range(3)]
    assert [(step.count, step.more) for step in steps] == [(3, True), (3, True), (1, False)]
    assert sorted(run_id for step in steps for run_id in ids(step.wakeups)) == runs


def test_a_timer_that_two_ticks_and_its_hint_fire_at_once_is_dispatched_once(
    work: Lane, other_storage: PostgresStorage, third_storage: PostgresStorage
) -> None:
    for _ in range(10):
        run_id = work.trigger_one("work", delay=timedelta(hours=1))
        work.age_timer(run_id)
        at_once(
            lambda: work.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=10),
            lambda: other_storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=10),
            lambda run_id=run_id: third_storage.deliveries.claim_runs([run_id], lease_for=timedelta(minutes=1), worker="o"),
        )
        assert work.events(run_id).count("run.dispatched") == 1
        if work.status(run_id) is Status.QUEUED:
            work.claim_one(run_id)
        row = work.connection.execute("SELECT token::text FROM runlane.lease WHERE run_id = %s", (run_id,)).fetchone()
        assert row is not None
        work.settle(Settlement(run_id, row[0], OutcomeKind.SUCCEEDED))


def test_a_due_timer_takes_its_place_by_its_due_time(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    holder = lane.claim_one(lane.trigger_one("work"))
    timer = lane.trigger_one("work", delay=timedelta(hours=1))
    younger = lane.trigger_one("work")
    lane.age_timer(timer)
    lane.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=10)
    woken = lane.succeed(holder).wakeups
    assert ids(woken) == [timer]
    assert lane.drain(woken) == [timer, younger]


def test_lists_tell_scheduled_from_queued(work: Lane) -> None:
    later, now = work.trigger_one("work", delay=timedelta(hours=1)), work.trigger_one("work")
    for status, run_id in ((Status.SCHEDULED, later), (Status.QUEUED, now)):
        page = work.storage.runs.list_runs(RunFilter(statuses=frozenset({status})), limit=10, cursor=None)
        assert [run.run_id for run in page.data] == [run_id]


def test_a_start_timeout_ends_only_what_never_started(work: Lane) -> None:
    missed = work.trigger_one("work", concurrency_key="a", start_timeout=timedelta(hours=1))
    started = work.claim_one(work.trigger_one("work", concurrency_key="b", start_timeout=timedelta(hours=1)))
    work.age_deadlines()
    assert work.storage.maintenance.expire_deadlines(limit=10).count == 2
    assert work.status(missed) is Status.CANCELLED
    assert work.status(started.run_id) is Status.RUNNING
    assert work.value("SELECT data->>'reason' FROM runlane.event WHERE run_id = %s AND type = 'run.cancelled'", missed) == "start_timeout"


def test_a_finish_timeout_asks_a_running_run_to_stop(work: Lane) -> None:
    claim = work.claim_one(work.trigger_one("work", finish_timeout=timedelta(hours=1)))
    work.age_deadlines()
    work.storage.maintenance.expire_deadlines(limit=10)
    assert work.status(claim.run_id) is Status.CANCELLATION_REQUESTED
    assert work.storage.deliveries.read_leases({claim.run_id: claim.token})[0].cancellation_requested


def test_a_start_timeout_hands_its_slot_over(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    lane.trigger_one("work", start_timeout=timedelta(hours=1))
    next_run = lane.trigger_one("work")
    lane.age_deadlines()
    assert ids(lane.storage.maintenance.expire_deadlines(limit=10).wakeups) == [next_run]
