from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from runlane.domain.retry import Fixed, NonRetryable, Retry, RetryAfter
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.services.context import Context, Release
from tests.functions.conftest import OpenWorld
from tests.functions.world import World

BOTH = pytest.mark.parametrize("major", [18, 15])


class Order(BaseModel):
    number: int


class Named(BaseModel):
    number: int
    name: str


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit


@task("double")
def double(order: Order) -> dict[str, int]:
    return {"doubled": order.number * 2}


@task("double.async")
async def double_async(order: Order, ctx: Context) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"doubled": order.number * 2, "attempt": ctx.attempt}


@BOTH
def test_handlers_of_both_kinds_run_and_their_results_are_kept_as_json(open_world: OpenWorld) -> None:
    world = open_world([double, double_async])
    plain, coroutine = (world.runlane.trigger(one, {"number": 4}).run.run_id for one in (double, double_async))
    world.deliver_sent()
    assert (world.get(plain).status, world.get(plain).result) == (Status.SUCCEEDED, {"doubled": 8})
    assert (world.get(coroutine).status, world.get(coroutine).result) == (Status.SUCCEEDED, {"doubled": 8, "attempt": 1})
    assert world.lane.events(plain) == ["run.created", "run.dispatched", "run.claimed", "run.succeeded"]


def test_async_attempts_run_beside_each_other(open_world: OpenWorld) -> None:
    together = asyncio.Barrier(5)

    @task("meet")
    async def meet(number: int) -> int:
        async with asyncio.timeout(5):
            await together.wait()
        return number

    world = open_world([meet], worker_concurrency=5)
    runs = [one.run.run_id for one in world.runlane.trigger_many(meet, range(5))]
    world.deliver_sent()
    assert world.statuses(runs) == {Status.SUCCEEDED}


def test_threads_run_beside_each_other_and_never_more_than_the_worker_may(open_world: OpenWorld) -> None:
    together = threading.Barrier(3)
    beside, most, lock = [0], [0], threading.Lock()

    @task("meet")
    def meet(number: int) -> None:
        with lock:
            beside[0] += 1
            most[0] = max(most[0], beside[0])
        together.wait(60)
        with lock:
            beside[0] -= 1

    world = open_world([meet], worker_concurrency=3)
    runs = [one.run.run_id for one in world.runlane.trigger_many(meet, range(9))]
    world.deliver(*world.wire.take())
    assert world.statuses(runs) == {Status.SUCCEEDED}
    assert most[0] == 3


def test_middleware_wraps_attempts_of_both_kinds_in_order(open_world: OpenWorld) -> None:
    seen: list[str] = []

    def outer(ctx: Context, call_next: Callable[[], Any]) -> Any:
        seen.append(f"outer {ctx.task_id}")
        return call_next()

    def inner(ctx: Context, call_next: Callable[[], Any]) -> Any:
        async def awaited() -> Any:
            return {"wrapped": await call_next()}

        seen.append(f"inner {ctx.task_id}")
        return awaited() if ctx.is_async else {"wrapped": call_next()}

    world = open_world([double, double_async], middleware=[outer, inner])
    for wrapped in (double, double_async):
        run_id = world.runlane.trigger(wrapped, {"number": 1}).run.run_id
        world.deliver_sent()
        assert world.get(run_id).result["wrapped"]["doubled"] == 2
        assert seen == [f"outer {wrapped.id}", f"inner {wrapped.id}"]
        seen.clear()


def test_a_release_waits_without_a_slot_and_is_no_failure(open_world: OpenWorld) -> None:
    @task("export", retry=Retry(max_attempts=1))
    def export(number: int, ctx: Context) -> Release | str:
        return ctx.release("10m", reason="not ready") if ctx.attempt < 3 else f"ready after {ctx.failures} failures"

    world = open_world([export])
    run_id = world.runlane.trigger(export, 1).run.run_id
    world.deliver_sent()
    record = world.get(run_id)
    assert record.status is Status.RELEASED
    assert timedelta(minutes=9, seconds=58) < record.due_at - record.created_at < timedelta(minutes=10, seconds=10)
    assert (world.count("lease"), world.count("dispatch")) == (0, 0)
    world.make_due(run_id)
    assert world.get(run_id).status is Status.RELEASED
    world.make_due(run_id)
    assert (world.get(run_id).status, world.get(run_id).result) == (Status.SUCCEEDED, "ready after 0 failures")
    assert [event.data["reason"] for event in world.runlane.runs.events(run_id) if event.type == "run.released"] == ["not ready"] * 2


@BOTH
def test_failures_are_retried_with_backoff_until_the_attempts_are_used_up(open_world: OpenWorld) -> None:
    @task("flaky", retry=Retry(max_attempts=3, backoff=lambda failures: f"{failures * 10}m"))
    def flaky(number: int) -> None:
        raise ValueError("no luck")

    world = open_world([flaky])
    run_id = world.runlane.trigger(flaky, 1).run.run_id
    world.deliver_sent()
    for failures in (1, 2):
        record = world.get(run_id)
        assert (record.status, record.failures) == (Status.RETRYING, failures)
        assert _minutes_to_due(world, run_id) == failures * 10
        world.make_due(run_id)
    record = world.get(run_id)
    assert (record.status, record.attempt, record.failures) == (Status.FAILED, 3, 3)
    assert record.failure is not None
    assert (record.failure.code, record.failure.type, record.failure.message) == ("handler_error", "ValueError", "no luck")
    assert "raise ValueError" in (record.failure.traceback or "")
    assert len(world.runlane.runs.attempts(run_id)) == 3


def test_a_handler_decides_when_it_is_tried_again_or_that_it_is_not(open_world: OpenWorld) -> None:
    @task("later", retry=Retry(max_attempts=2, backoff=Fixed("1s")))
    def later(number: int) -> None:
        raise RetryAfter("30m")

    @task("never", retry=Retry(max_attempts=5))
    def never(number: int) -> None:
        raise NonRetryable("the account is closed")

    world = open_world([later, never])
    waits, ends = (world.runlane.trigger(one, 1).run.run_id for one in (later, never))
    world.deliver_sent()
    assert (world.get(waits).status, _minutes_to_due(world, waits)) == (Status.RETRYING, 30)
    failed = world.get(ends)
    assert (failed.status, failed.attempt) == (Status.FAILED, 1)
    assert failed.failure is not None
    assert (failed.failure.code, failed.failure.message) == ("non_retryable", "the account is closed")


def test_a_result_too_large_or_no_json_fails_the_run_at_once(open_world: OpenWorld) -> None:
    @task("large")
    def large(number: int) -> str:
        return "x" * 300_000

    @task("odd")
    def odd(number: int) -> Any:
        return {"at": object()}

    world = open_world([large, odd])
    runs = [world.runlane.trigger(one, 1).run.run_id for one in (large, odd)]
    world.deliver_sent()
    records = [world.get(run_id) for run_id in runs]
    assert [(one.status, one.attempt, one.result) for one in records] == [(Status.FAILED, 1, None)] * 2
    assert [one.failure and one.failure.code for one in records] == ["result_too_large", "result_invalid"]


def test_a_stored_payload_that_no_longer_fits_fails_without_running(open_world: OpenWorld) -> None:
    ran: list[int] = []

    @task("double")
    def stricter(order: Named) -> None:
        ran.append(order.number)

    run_id = open_world([double]).runlane.trigger(double, {"number": 4}).run.run_id
    world = open_world([stricter])
    world.deliver(run_id)
    record = world.get(run_id)
    assert (record.status, record.attempt, ran) == (Status.FAILED, 1, [])
    assert record.failure is not None
    assert record.failure.code == "payload_invalid"
    assert "name" in record.failure.message


def test_a_task_of_a_newer_deployment_is_handed_back_for_30_seconds_uncounted(open_world: OpenWorld) -> None:
    run_id = open_world([double]).runlane.trigger(double, {"number": 4}).run.run_id
    older = open_world([])
    assert older.deliver(run_id) == {"batchItemFailures": []}
    record = older.get(run_id)
    assert (record.status, record.attempt, record.failures) == (Status.SCHEDULED, 0, 0)
    assert older.value("SELECT due_at - clock_timestamp() BETWEEN '25 s' AND '30 s' FROM runlane.timer WHERE run_id = %s", run_id)
    newer = open_world([double])
    newer.make_due(run_id)
    assert (newer.get(run_id).status, newer.get(run_id).attempt) == (Status.SUCCEEDED, 1)


def test_nul_in_a_result_and_an_exception_without_words_are_stored_all_the_same(open_world: OpenWorld) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    @task("mute", retry=Retry(max_attempts=1))
    def mute(number: int) -> None:
        raise Mute

    @task("nul", retry=Retry(max_attempts=1))
    def nul(number: int) -> None:
        raise ValueError("a\x00b" + "\ud800")

    @task("nul.result")
    def nul_result(number: int) -> str:
        return "a\x00b"

    world = open_world([mute, nul, nul_result])
    runs = [world.runlane.trigger(one, 1).run.run_id for one in (mute, nul, nul_result)]
    world.deliver_sent()
    assert world.statuses(runs) == {Status.FAILED}


def test_an_exit_inside_a_handler_is_the_runs_business(open_world: OpenWorld) -> None:
    @task("exit", retry=Retry(max_attempts=1))
    def leave(number: int) -> None:
        raise SystemExit(3)

    @task("exit.async", retry=Retry(max_attempts=1))
    async def leave_async(number: int) -> None:
        raise KeyboardInterrupt

    @task("exit.described", retry=Retry(max_attempts=1))
    def leave_described(number: int) -> None:
        raise Leaving

    @task("exit.behind", retry=Retry(max_attempts=1))
    async def leave_behind(number: int) -> None:
        await asyncio.gather(leave_async.handler(number))

    world = open_world([leave, leave_async, leave_described, leave_behind, double])
    runs = [world.runlane.trigger(one, 1).run.run_id for one in (leave, leave_async, leave_described, leave_behind)]
    neighbour = world.runlane.trigger(double, {"number": 1}).run.run_id
    world.deliver_sent()
    assert world.statuses(runs) == {Status.FAILED}
    assert world.get(neighbour).status is Status.SUCCEEDED


def test_a_payload_is_stored_as_given(open_world: OpenWorld) -> None:
    @task("anything")
    def anything(payload: dict[str, Any]) -> str:
        return json.dumps(payload)

    world = open_world([anything])
    given = {"b": 1, "a": [1.5, None, "ü😀"], "big": 2**60}
    run_id = world.runlane.trigger(anything, given).run.run_id
    world.deliver_sent()
    assert world.get(run_id).payload == given
    assert json.loads(world.get(run_id).result) == given


def _minutes_to_due(world: World, run_id: str) -> int:
    return int(world.value("SELECT ceil(extract(epoch FROM due_at - clock_timestamp()) / 60) FROM runlane.timer WHERE run_id = %s", run_id))


@pytest.mark.parametrize("reason", ["a\x00b", "\ud800", "x" * 10_000])
def test_a_release_with_an_odd_reason_is_a_release(open_world: OpenWorld, reason: str) -> None:
    @task("odd", retry=Retry(max_attempts=1))
    def odd(number: int, ctx: Context) -> Release:
        return ctx.release("1h", reason=reason)

    world = open_world([odd, double])
    run_id = world.runlane.trigger(odd, 1).run.run_id
    neighbour = world.runlane.trigger(double, {"number": 1}).run.run_id
    world.deliver_sent()
    assert (world.get(run_id).status, world.get(neighbour).status) == (Status.RELEASED, Status.SUCCEEDED)


@pytest.mark.parametrize("delay", ["-1s", None, 5.0, timedelta.max, timedelta(-1)])
def test_a_release_with_no_delay_that_can_be_kept_is_a_failure(open_world: OpenWorld, delay: Any) -> None:
    @task("odd", retry=Retry(max_attempts=1))
    def odd(number: int) -> Release:
        return Release(delay)

    world = open_world([odd])
    run_id = world.runlane.trigger(odd, 1).run.run_id
    world.deliver_sent()
    assert "duration_invalid" in str(world.get(run_id).failure)


def test_a_release_may_be_given_as_it_is_written(open_world: OpenWorld) -> None:
    @task("odd")
    def odd(number: int) -> Release:
        return Release("1h")

    world = open_world([odd])
    run_id = world.runlane.trigger(odd, 1).run.run_id
    world.deliver_sent()
    assert world.get(run_id).status is Status.RELEASED
