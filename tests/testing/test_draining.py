"""Everything due is executed in this thread, on a real database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from runlane import ConfigurationError, Context, ContractError, Lane, Runlane, Status, task
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.testing import RecordingTransport, drain, make_due, on_database
from tests.testing.catalog import Order, count, heard, main, narrow, note, pack
from tests.testing.catalog import shop as another_shop


def test_all_that_is_due_runs_in_the_order_of_dispatch(shop: Runlane, runlane_database: str) -> None:
    shop.trigger_many(pack, [Order(name="a", parts=number) for number in (1, 2, 3)])
    shop.trigger(note, "deferred", dispatch="deferred")
    with psycopg.connect(runlane_database) as connection:
        shop.trigger(note, "joined", connection=connection)
    shop.trigger(count, 7)
    report = drain(shop)
    assert sorted(heard) == ["a", "a", "a", "count 7", "deferred", "joined"]
    assert report.counts == {"orders.pack": 3, "orders.note": 2, "orders.count": 1}
    assert [attempt.outcome.result["packed"] for attempt in report.attempts if attempt.task == "orders.pack"] == [1, 2, 3]
    assert (report.failures, report.waiting, str(drain(shop))) == ((), (), "nothing ran and nothing waits")


def test_what_a_handler_triggers_runs_too(runlane_database: str) -> None:
    made: list[Runlane] = []

    @task("chain.start")
    def start(length: int) -> None:
        if length:
            made[0].trigger(start, length - 1)

    made.append(Runlane(lane=Lane(PostgresStorage("host=/nowhere"), RecordingTransport()), queues=[main], tasks=[start]))
    with on_database(made[0], runlane_database):
        made[0].trigger(start, 3)
        assert drain(made[0]).counts == {"chain.start": 4}


def test_what_is_not_due_waits_and_is_reported(shop: Runlane) -> None:
    shop.trigger(pack, Order(name="later"))
    shop.trigger(note, "tomorrow", delay="1d")
    report = drain(shop)
    assert {(run.task, run.status) for run in report.waiting} == {("orders.pack", Status.RELEASED), ("orders.note", Status.SCHEDULED)}
    assert "released for 600 s (not there yet)" in str(report)
    assert "orders.note" in str(report)
    assert "waits: scheduled, due" in str(report)


def test_one_run_is_made_due_and_others_are_not(shop: Runlane) -> None:
    early, late = (shop.trigger(note, text, delay=delay) for text, delay in (("early", "1h"), ("late", "2h")))
    assert make_due(shop, late) == (late.run.run_id,)
    drain(shop)
    assert heard == ["late"]
    assert make_due(shop, late, early.run.run_id) == (early.run.run_id,)
    assert drain(shop).counts == {"orders.note": 1}


def test_all_of_a_task_or_all_there_are_can_be_made_due(shop: Runlane) -> None:
    shop.trigger(note, "one", delay="1h")
    shop.trigger(pack, Order(name="later"))
    drain(shop)
    assert len(make_due(shop, task=pack)) == 1
    assert [attempt.outcome.result for attempt in drain(shop).attempts] == [{"late": True}]
    assert len(make_due(shop)) == 1
    assert heard == ["later", "later"]
    drain(shop)
    assert heard[-1] == "one"


def test_nothing_is_made_due_when_nothing_waits(shop: Runlane) -> None:
    assert make_due(shop) == ()


def test_through_delays_all_runs_end_the_earliest_first(shop: Runlane) -> None:
    shop.trigger(note, "third", delay="2d")
    shop.trigger(note, "first", delay="1h")
    shop.trigger(pack, Order(name="broken"))
    shop.trigger(pack, Order(name="later"), delay="1d")
    report = drain(shop, through_delays=True)
    assert heard == ["broken", "broken", "first", "later", "later", "third"]
    assert report.waiting == ()
    assert [attempt.outcome.status for attempt in report.failures] == [Status.RETRYING, Status.FAILED]
    assert isinstance(report.failures[0].outcome.error, ValueError)


def test_a_run_that_never_ends_is_stopped_and_shown(shop: Runlane) -> None:
    run = shop.trigger(pack, Order(name="for ever")).run
    with pytest.raises(AssertionError, match=rf"still due after 7 attempts(.*\n)+.*{run.run_id} attempt 7: released for 0 s"):
        drain(shop, limit=7)
    assert shop.runs.get(run.run_id).status is not Status.RUNNING
    with pytest.raises(ContractError, match="limit"):
        drain(shop, limit=0)


def test_handlers_run_in_the_tests_thread_also_under_its_event_loop(shop: Runlane, runlane_database: str) -> None:
    threads: list[threading.Thread] = []

    def watch(ctx: Context, call_next: Callable[[], Any]) -> Any:
        threads.append(threading.current_thread())
        return call_next()

    watched = Runlane(lane=shop.lane, queues=[main, narrow], tasks=[note, count, pack], middleware=[watch])
    watched.trigger(note, "x")
    drain(watched)
    assert threads == [threading.current_thread()]
    watched.trigger(count, 1)

    async def in_a_loop() -> int:
        return len(drain(watched).attempts)

    assert asyncio.run(in_a_loop()) == 1


def test_a_run_that_is_cancelled_while_it_runs_is_reported_as_it_ended(runlane_database: str) -> None:
    made: list[Runlane] = []

    @task("stops.itself")
    def stop(text: str, ctx: Context) -> str:
        made[0].runs.cancel(ctx.run_id)
        return text

    made.append(Runlane(lane=Lane(PostgresStorage("host=/nowhere"), RecordingTransport()), queues=[main], tasks=[stop]))
    with on_database(made[0], runlane_database):
        made[0].trigger(stop, "kept")
        (attempt,) = drain(made[0]).attempts
    assert (attempt.outcome.cancelled, attempt.outcome.result) == (True, "kept")


def test_a_run_of_an_unknown_task_is_a_fault_of_the_test(shop: Runlane) -> None:
    run = shop.trigger(note, "x").run
    without = Runlane(lane=shop.lane, queues=[main, narrow], tasks=[pack])
    with pytest.raises(ConfigurationError, match=r"'orders.note' is not registered"):
        drain(without)
    assert shop.runs.get(run.run_id).status is Status.QUEUED


def test_a_paused_queue_stays_where_it_is(shop: Runlane) -> None:
    shop.trigger(note, "x")
    shop.queues.pause(main)
    assert [run.status for run in drain(shop, through_delays=True).waiting] == [Status.QUEUED]
    shop.queues.resume(main)
    assert len(drain(shop).attempts) == 1


def test_what_pytest_raises_in_a_handler_reaches_the_test(shop: Runlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.testing.catalog.heard", None)
    failing = Runlane(
        lane=shop.lane, queues=[main, narrow], tasks=[pack, count, note], middleware=[lambda ctx, call_next: pytest.fail("no")]
    )
    failing.trigger(note, "x")
    with pytest.raises(pytest.fail.Exception, match="no"):
        drain(failing)


def test_only_a_tests_own_database_grows_old() -> None:
    with pytest.raises(ContractError, match="not on a test's own database"):
        make_due(another_shop())


def test_the_lane_of_before_comes_back(runlane_database: str) -> None:
    made = another_shop()
    before = made.lane
    with on_database(made, runlane_database) as transport:
        made.trigger(note, "x")
        assert [wakeup.queue for wakeup in transport.wakeups] == ["main"]
        assert {queue.queue for queue in made.queues.stats()} == {"main", "narrow"}
    assert made.lane is before


def test_a_lease_that_expired_is_recovered_by_a_drain(shop: Runlane, runlane_database: str) -> None:
    run = shop.trigger(pack, Order(name="a")).run
    shop.parts.store.claim_runs([run.run_id], lease_for=timedelta(seconds=60), worker="dead")
    with psycopg.connect(runlane_database, autocommit=True) as connection:
        connection.execute("UPDATE runlane.lease SET expires_at = clock_timestamp() - interval '1 hour'")
    report = drain(shop, through_delays=True)
    assert [attempt.attempt for attempt in report.attempts] == [2]
