"""One attempt in memory ends as it would in production."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from runlane import Context, ContractError, OutOfTime, PayloadError, Retry, Status, task
from runlane.testing import ManualClock, run_task
from tests.testing.catalog import Order, count, note, pack


def test_a_result_is_what_readers_of_the_run_will_see() -> None:
    @task("models.return")
    def give(order: Order) -> Order:
        return order

    outcome = run_task(give, Order(name="acme"))
    assert (outcome.succeeded, outcome.result, outcome.result_or_raise()) == (True, {"name": "acme", "parts": 1}, outcome.result)


def test_a_payload_is_validated_as_at_trigger() -> None:
    with pytest.raises(PayloadError, match="name"):
        run_task(pack, {"name": ""})
    assert run_task(pack, {"name": "acme", "parts": "3"}).result == {"packed": 3, "key": "acme"}


def test_a_release_tells_delay_and_reason() -> None:
    outcome = run_task(pack, Order(name="later"))
    assert (outcome.released, outcome.delay, outcome.reason) == (True, timedelta(minutes=10), "not there yet")
    assert str(outcome) == "released for 600 s (not there yet)"


def test_the_attempt_is_the_tests_to_choose() -> None:
    assert run_task(pack, Order(name="later"), attempt=2).result == {"late": True}


def test_a_failure_retries_while_attempts_are_left() -> None:
    first, last = run_task(pack, Order(name="broken")), run_task(pack, Order(name="broken"), attempt=2, failures=1)
    assert (first.retrying, first.delay, last.failed, last.delay) == (True, run_task(pack, Order(name="broken")).delay, True, None)
    assert first.failure is not None
    assert (first.failure.code, first.failure.type, first.failure.message) == ("handler_error", "ValueError", "it fell down")
    assert "it fell down" in str(first)


def test_what_the_handler_raised_can_be_raised_again() -> None:
    with pytest.raises(ValueError, match="it fell down"):
        run_task(pack, Order(name="broken")).result_or_raise()
    with pytest.raises(AssertionError, match=r"did not succeed: released for 600 s"):
        run_task(pack, Order(name="later")).result_or_raise()


def test_a_retry_after_says_when() -> None:
    assert run_task(pack, Order(name="busy")).delay == timedelta(seconds=30)


def test_a_failure_that_no_retry_helps_ends_the_run() -> None:
    outcome = run_task(pack, Order(name="gone"))
    assert outcome.failed
    assert outcome.failure is not None
    assert outcome.failure.code == "non_retryable"


def test_a_result_that_cannot_be_stored_fails_the_run() -> None:
    @task("bad.result")
    def give(size: int) -> object:
        return object()

    assert run_task(give, 1).failed


def test_a_cancelled_run_stops_where_its_handler_looks() -> None:
    assert run_task(pack, Order(name="long"), cancelled=True).cancelled


def test_a_cancellation_can_come_in_the_middle() -> None:
    looks = iter([False, False, True])
    assert run_task(pack, Order(name="long"), cancelled=lambda: next(looks)).cancelled
    assert next(looks, None) is None


def test_a_cancelled_run_that_returns_all_the_same_keeps_its_result() -> None:
    outcome = run_task(pack, Order(name="acme"), cancelled=True)
    assert (outcome.cancelled, outcome.succeeded, outcome.result) == (True, False, {"packed": 1, "key": "acme"})


def test_an_attempt_that_is_out_of_time_is_a_failure_that_may_be_tried_again() -> None:
    outcome = run_task(pack, Order(name="long"), remaining="0s")
    assert outcome.retrying
    assert outcome.failure is not None
    assert outcome.failure.code == "timed_out"
    assert isinstance(outcome.error, OutOfTime | None)


def test_time_is_the_tests_to_move() -> None:
    clock = ManualClock()

    @task("slow.work", retry=Retry(max_attempts=1))
    def work(seconds: float, ctx: Context) -> float:
        clock.sleep(seconds)
        ctx.check()
        return ctx.remaining()

    assert run_task(work, 4.0, remaining="10s", clock=clock).result == 6.0
    assert run_task(work, 10.0, remaining="10s", clock=clock).failed
    clock.advance("1m")
    assert (clock.slept, clock.now) == ([4.0, 10.0], 74.0)


def test_a_tasks_own_limit_bounds_what_remains() -> None:
    assert run_task(count, 1, clock=ManualClock()).result == 120.0
    assert run_task(count, 1, remaining="1h", clock=ManualClock()).result == 120.0
    assert run_task(count, 1, remaining="5s", clock=ManualClock()).result == 5.0


def test_an_async_handler_runs_in_an_async_test_too() -> None:
    async def in_a_loop() -> float:
        return run_task(count, 1, remaining="1m", clock=ManualClock()).result

    assert asyncio.run(in_a_loop()) == 60.0


def test_an_async_handler_is_stopped_at_its_deadline() -> None:
    @task("async.sleep", retry=Retry(max_attempts=1))
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)

    outcome = run_task(sleep, 60.0, remaining="20ms")
    assert outcome.failed
    assert outcome.failure is not None
    assert outcome.failure.code == "timed_out"


def test_the_context_says_what_the_test_gave() -> None:
    seen: list[Context] = []

    @task("context.show", tenant=lambda text: f"of {text}", concurrency_key="key")
    def show(text: str, ctx: Context) -> list[object]:
        return [ctx.tenant, ctx.concurrency_key, ctx.queue, ctx.attempt, ctx.failures, ctx.payload, dict(ctx.trace), dict(ctx.meta)]

    def watch(ctx: Context, call_next: Callable[[], Any]) -> Any:
        seen.append(ctx)
        return call_next()

    default = run_task(show, "x", middleware=[watch]).result
    given = run_task(show, "x", tenant="t", concurrency_key="k", queue="q", attempt=3, failures=1, trace={"a": "b"}, meta={"c": 1}).result
    assert default == ["of x", "key", "default", 1, 0, "x", {}, {}]
    assert given == ["t", "k", "q", 3, 1, "x", {"a": "b"}, {"c": 1}]
    assert [ctx.task_id for ctx in seen] == ["context.show"]


@pytest.mark.parametrize(
    ("options", "field"), [({"attempt": 0}, "attempt"), ({"failures": 1}, "failures"), ({"max_attempts": 0}, "max_attempts")]
)
def test_counters_that_cannot_be_are_refused(options: dict[str, int], field: str) -> None:
    with pytest.raises(ContractError, match=rf"^{field}: "):
        run_task(note, "x", **options)


def test_a_function_is_no_task() -> None:
    with pytest.raises(ContractError, match="is no task"):
        run_task(pack.handler, Order(name="acme"))


def test_what_pytest_raises_in_a_handler_reaches_the_test() -> None:
    @task("fails.the_test")
    def fail(text: str) -> None:
        pytest.fail(text)

    with pytest.raises(pytest.fail.Exception, match="a fake was misused"):
        run_task(fail, "a fake was misused")


def test_each_status_has_one_predicate() -> None:
    names = ("succeeded", "released", "retrying", "failed", "cancelled")
    for name in ("acme", "later", "broken", "gone"):
        outcome = run_task(pack, Order(name=name))
        assert [word for word in names if getattr(outcome, word)] == [outcome.status.value]
    assert outcome.status is Status.FAILED


def test_running_a_task_needs_neither_pytest_nor_a_database() -> None:
    program = """
import sys
from runlane import task
from runlane.testing import run_task
@task("t")
def double(number: int) -> int: return 2 * number
assert run_task(double, 2).result == 4
print(sorted({"pytest", "psycopg", "boto3", "psutil", "runlane.runtime"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
