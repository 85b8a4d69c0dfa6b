from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest

from runlane.domain.outcome import Failure, OutcomeKind, Settlement
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.ports.stores import ClaimBatch, SettleBatch, SettledRun
from runlane.services.budget import TimeBudget
from runlane.services.context import Context
from tests.services.fakes import claimed
from tests.services.tasks import Bench
from tests.services.test_delivery import delivered, quick, quick_async, records

gate = threading.Event()


@pytest.fixture(autouse=True)
def open_gate() -> Iterator[None]:
    gate.clear()
    yield
    gate.set()


@task("hung")
def hung(payload: int) -> None:
    gate.wait(60)


@task("hung.briefly", max_attempt_duration="50ms")
def hung_briefly(payload: int) -> None:
    gate.wait(60)


@task("checking")
def checking(payload: int, ctx: Context) -> None:
    while True:
        ctx.check()
        time.sleep(0.005)


@task("sleeping")
async def sleeping(payload: int) -> None:
    await asyncio.sleep(10)


@task("long", max_attempt_duration="1m")
def long(payload: int) -> None: ...


@task("fair", max_attempt_duration="200ms")
def fair(payload: int) -> None:
    time.sleep(0.2)


@task("blocking.async", max_attempt_duration="50ms")
async def blocking_async(payload: int) -> None:
    gate.wait(60)


TASKS = [blocking_async, quick_async, quick, hung, hung_briefly, checking, sleeping, long, fair]


class Ended:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


def eventually(claim: Callable[[], bool], seconds: float = 60) -> None:
    ends_at = time.monotonic() + seconds
    while not claim() and time.monotonic() < ends_at:
        time.sleep(0.005)
    assert claim()


@pytest.mark.parametrize("name", ["checking", "sleeping"])
def test_an_attempt_that_notices_its_deadline_is_timed_out_and_nothing_exits(name: str) -> None:
    ended = Ended()
    bench = Bench(TASKS, exit_process=ended)
    run = claimed(name, "1")
    settled = delivered(bench, run, remaining=lambda: 0.4)[run.run_id]
    assert (settled.kind, settled.failure and settled.failure.code) == (OutcomeKind.RETRY, "timed_out")
    assert ended.calls == 0


def test_in_lambda_an_attempt_that_does_not_stop_is_settled_last_and_the_process_ends() -> None:
    order: list[str] = []
    bench: Bench = Bench(TASKS, exit_process=lambda: order.append(f"exit after {len(bench.deliveries.settled)} settlements"))
    quick_run, hung_run = claimed("quick", "1"), claimed("hung", "1")
    outcomes = delivered(bench, quick_run, hung_run, remaining=lambda: 0.4)
    assert outcomes[quick_run.run_id].kind == OutcomeKind.SUCCEEDED
    settled = outcomes[hung_run.run_id]
    assert (settled.kind, settled.failure and settled.failure.code) == (OutcomeKind.RETRY, "timed_out")
    # No retry may be due before the process, and with it the thread, has ended.
    assert settled.delay is not None
    assert settled.delay >= timedelta(seconds=1)
    assert order == ["exit after 2 settlements"]


def test_in_lambda_the_process_does_not_wait_for_its_end_when_nothing_else_is_left() -> None:
    ended = Ended()
    bench = Bench(TASKS, exit_process=ended, deadline_margin="100ms")
    began = time.monotonic()
    delivered(bench, claimed("hung.briefly", "1"), remaining=lambda: 30)
    assert ended.calls == 1
    assert time.monotonic() - began < 15


def test_a_resident_worker_keeps_the_lease_until_the_thread_ends_then_settles() -> None:
    bench = Bench(TASKS, deadline_margin="50ms")
    run = claimed("hung.briefly", "1")
    assert delivered(bench, run) == {}
    assert bench.runlane._worker.heartbeat.holds(run.run_id)
    gate.set()
    eventually(lambda: run.run_id in bench.deliveries.outcomes)
    settled = bench.deliveries.outcomes[run.run_id]
    assert (settled.kind, settled.failure and settled.failure.code) == (OutcomeKind.RETRY, "timed_out")
    eventually(lambda: not bench.runlane._worker.heartbeat.holds(run.run_id))


def test_the_lease_of_an_attempt_that_nobody_waits_for_is_kept() -> None:
    bench = Bench(TASKS, deadline_margin="50ms")
    delivered(bench, claimed("hung.briefly", "1"))
    eventually(lambda: "heartbeat" in bench.deliveries.calls or "read" in bench.deliveries.calls)


def test_a_delivery_that_is_broken_off_leaves_its_attempts_to_their_threads_and_hands_back_the_others() -> None:
    bench = Bench(TASKS, worker_concurrency=2)
    first, under_way, waiting = claimed("quick", "1"), claimed("hung", "1"), claimed("hung", "2")
    breaks = [KeyboardInterrupt()]

    def settle(settlements: Sequence[Settlement]) -> SettleBatch:
        if breaks:
            raise breaks.pop()
        return SettleBatch(tuple(SettledRun(one.run_id, Status.SUCCEEDED) for one in settlements), ())

    bench.deliveries.on_settle = settle
    bench.deliveries.claims.append(ClaimBatch((first, under_way, claimed("hung", "3"), waiting)))
    with pytest.raises(KeyboardInterrupt):
        bench.runlane.execute_deliveries(records([first, under_way, waiting]))
    assert bench.deliveries.outcomes[waiting.run_id].kind is OutcomeKind.HANDED_BACK
    assert under_way.run_id not in bench.deliveries.outcomes
    gate.set()
    eventually(lambda: under_way.run_id in bench.deliveries.outcomes)
    assert bench.deliveries.outcomes[under_way.run_id].kind is OutcomeKind.SUCCEEDED


def test_a_worker_whose_every_place_is_held_by_strays_returns_its_messages() -> None:
    bench = Bench(TASKS, deadline_margin="50ms", worker_concurrency=1)
    first, waiting = claimed("hung.briefly", "1"), claimed("quick", "1")
    outcomes = delivered(bench, first, waiting)
    assert outcomes[waiting.run_id].kind == OutcomeKind.HANDED_BACK
    assert bench.runlane.execute_deliveries(records([claimed("quick", "1")])) == ("m0",)
    gate.set()
    eventually(lambda: not bench.runlane._worker.pool.is_clogged)
    run = claimed("quick", "1")
    assert delivered(bench, run)[run.run_id].kind == OutcomeKind.SUCCEEDED


def test_an_async_handler_that_blocks_the_loop_takes_nobody_along() -> None:
    ended = Ended()
    bench = Bench(TASKS, exit_process=ended, deadline_margin="50ms")
    blocking, waiting = claimed("blocking.async", "1"), claimed("quick.async", "1")
    outcomes = delivered(bench, blocking, waiting, remaining=lambda: 30)
    assert (outcomes[blocking.run_id].failure or Failure("", "", "")).code == "timed_out"
    assert outcomes[waiting.run_id].kind == OutcomeKind.HANDED_BACK
    assert ended.calls == 1


def test_a_run_that_was_handed_back_is_not_taken_again_at_once() -> None:
    bench = Bench(TASKS, worker_concurrency=1)
    bench.deliveries.oldest.append(ClaimBatch((claimed("quick", "1"),)))
    delivered(bench, claimed("fair", "1"), claimed("fair", "1"), remaining=lambda: 0.5)
    assert "settle and claim" not in bench.deliveries.calls


def test_what_cannot_start_any_more_is_handed_back() -> None:
    bench = Bench(TASKS, worker_concurrency=1)
    first, second = claimed("fair", "1"), claimed("fair", "1")
    outcomes = delivered(bench, first, second, remaining=lambda: 0.5)
    assert outcomes[first.run_id].kind == OutcomeKind.SUCCEEDED
    assert (outcomes[second.run_id].kind, outcomes[second.run_id].delay) == (OutcomeKind.HANDED_BACK, timedelta(0))


def test_a_duration_that_never_fits_waits_visibly() -> None:
    bench = Bench(TASKS)
    run = claimed("long", "1")
    settled = delivered(bench, run, remaining=lambda: 30)[run.run_id]
    assert (settled.kind, settled.delay) == (OutcomeKind.HANDED_BACK, timedelta(seconds=30))
    assert "max_attempt_duration" in (settled.reason or "")


def test_nothing_more_is_taken_when_the_time_is_short() -> None:
    bench = Bench(TASKS)
    bench.deliveries.oldest.append(ClaimBatch((claimed("quick", "1"),)))
    delivered(bench, claimed("fair", "1"), remaining=lambda: 0.35)
    assert bench.deliveries.calls == ["claim", "settle"]


class StoppedClock:
    def monotonic(self) -> float:
        return 100.0

    def sleep(self, seconds: float) -> None: ...


def test_the_margin_is_never_more_than_a_quarter_of_the_time() -> None:
    budget = TimeBudget(StoppedClock(), lambda: 8, 5)
    assert (budget.margin, budget.end) == (2, 106)
    assert budget.fits(6, 100)
    assert not budget.fits(6.1, 100)
    assert budget.fits(None, 104)
    assert not budget.fits(None, 104.1)


def test_without_an_end_everything_fits() -> None:
    budget = TimeBudget(StoppedClock(), None, 5)
    assert budget.fits(1e9, 100)
    assert budget.deadline(None, 100) == float("inf")
