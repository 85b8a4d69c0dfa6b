from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from runlane.domain.errors import ContractError, UnavailableError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.retry import NonRetryable
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.ports.stores import ClaimBatch, ClaimedRun, ExpiredLease, Refusal, SettleBatch, SettledRun, Wakeup
from runlane.services.context import Context
from runlane.services.delivery import Record
from tests.services.fakes import claimed, message, run_id
from tests.services.tasks import Bench, Order


@task("quick")
def quick(payload: int) -> int:
    return payload


@task("quick.async")
async def quick_async(payload: int) -> int:
    await asyncio.sleep(0)
    return payload


@task("broken")
def broken(payload: int) -> None:
    raise RuntimeError("no")


@task("hopeless")
def hopeless(payload: int) -> None:
    raise NonRetryable("never")


@task("waiting")
def waiting(payload: int, ctx: Context) -> Any:
    return ctx.release("10m", reason="not ready")


class Odd(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise ValueError("odd")


@task("odd")
def odd(payload: int) -> None:
    raise Odd


@task("exiting")
def exiting(payload: int) -> None:
    raise SystemExit(3)


@task("order")
def order(payload: Order) -> None: ...


@task("wrong")
def wrong(payload: int) -> object:
    return object()


TASKS = [quick, quick_async, broken, hopeless, waiting, exiting, odd, order, wrong]


@pytest.fixture
def bench() -> Bench:
    return Bench(TASKS)


def records(runs: Sequence[ClaimedRun | RunId]) -> list[Record]:
    ids = [run.run_id if isinstance(run, ClaimedRun) else run for run in runs]
    return [Record(f"m{index}", message(one)) for index, one in enumerate(ids)]


def delivered(bench: Bench, *runs: ClaimedRun, remaining: Callable[[], float] | None = None) -> dict[RunId, Settlement]:
    bench.deliveries.claims.append(ClaimBatch(runs))
    assert bench.runlane.execute_deliveries(records(runs), remaining) == ()
    outcomes: dict[RunId, Settlement] = bench.deliveries.outcomes
    return outcomes


def only(bench: Bench, run: ClaimedRun) -> Settlement:
    return delivered(bench, run)[run.run_id]


def test_a_batch_of_quick_attempts_is_one_claim_and_one_settlement(bench: Bench) -> None:
    runs = [claimed("quick", str(number)) for number in range(10)]
    outcomes = delivered(bench, *runs)
    assert [outcomes[run.run_id].result for run in runs] == [str(number) for number in range(10)]
    assert bench.deliveries.calls == ["claim", "settle and claim"]
    assert bench.storage.triggers.calls == []


def test_a_run_that_its_own_trigger_hands_to_this_process_is_never_marked(bench: Bench) -> None:
    run = claimed("quick", "1")
    bench.storage.triggers.wakeups = (Wakeup(run.run_id, "main"),)
    bench.runlane.trigger(quick, 1)
    delivered(bench, run)
    bench.runlane.close()
    assert bench.storage.triggers.calls == ["eager"]


def test_async_handlers_run_beside_the_others(bench: Bench) -> None:
    runs = [claimed(name, "1") for name in ("quick", "quick.async") * 20]
    assert {one.result for one in delivered(bench, *runs).values()} == {"1"}
    assert len(bench.deliveries.outcomes) == 40


def test_a_handlers_exception_is_the_runs_business(bench: Bench) -> None:
    settled = only(bench, claimed("broken", "1"))
    assert settled.kind == OutcomeKind.RETRY
    assert settled.failure is not None
    assert (settled.failure.code, settled.failure.message) == ("handler_error", "no")
    assert "raise RuntimeError" in (settled.failure.traceback or "")
    assert "attempt.py" not in (settled.failure.traceback or "")


def test_the_last_attempt_and_a_hopeless_one_end_failed(bench: Bench) -> None:
    assert only(bench, claimed("broken", "1", failures=2)).kind == OutcomeKind.FAILED
    assert only(bench, claimed("hopeless", "1")).kind == OutcomeKind.FAILED


def test_a_handler_that_exits_takes_nobody_along(bench: Bench) -> None:
    assert only(bench, claimed("exiting", "1")).kind == OutcomeKind.RETRY
    assert only(bench, claimed("quick", "1")).kind == OutcomeKind.SUCCEEDED


def test_a_failure_that_cannot_be_described_is_settled_all_the_same(bench: Bench) -> None:
    assert only(bench, claimed("odd", "1")).kind == OutcomeKind.RETRY


def test_a_release_waits_without_failing(bench: Bench) -> None:
    settled = only(bench, claimed("waiting", "1"))
    assert (settled.kind, settled.delay, settled.reason) == (OutcomeKind.RELEASED, timedelta(minutes=10), "not ready")


def test_a_stored_payload_that_no_longer_fits_fails_for_good(bench: Bench) -> None:
    settled = only(bench, claimed("order", '{"number":"x"}'))
    assert settled.kind == OutcomeKind.FAILED
    assert settled.failure is not None
    assert settled.failure.code == "payload_invalid"


def test_a_result_that_cannot_be_stored_fails_for_good(bench: Bench) -> None:
    settled = only(bench, claimed("wrong", "1"))
    assert (settled.kind, settled.failure and settled.failure.code) == (OutcomeKind.FAILED, "result_invalid")


def test_a_task_that_this_code_does_not_know_is_handed_back(bench: Bench) -> None:
    settled = only(bench, claimed("tomorrow", "1"))
    assert (settled.kind, settled.delay, settled.reason) == (OutcomeKind.HANDED_BACK, timedelta(seconds=30), "task_unknown")


def test_a_misfit_fails_alone_and_observers_cannot_break_the_batch() -> None:
    seen: list[tuple[str, str]] = []

    def observe(message_id: str, error: Exception) -> None:
        seen.append((message_id, str(error)))
        raise RuntimeError("observer")

    bench = Bench(TASKS, on_delivery_failure=[observe])
    run = claimed("quick", "1")
    bench.deliveries.claims.append(ClaimBatch((run,)))
    misfit = Record("bad", ContractError("envelope_invalid", "no envelope"))
    assert bench.runlane.execute_deliveries([misfit, Record("good", message(run.run_id))]) == ("bad",)
    assert seen == [("bad", "no envelope")]
    assert run.run_id in bench.deliveries.outcomes


def test_a_claim_that_fails_fails_its_records(bench: Bench) -> None:
    bench.deliveries.claims.append(UnavailableError("storage_unavailable", "gone"))
    assert bench.runlane.execute_deliveries(records([run_id(), run_id()])) == ("m0", "m1")


def test_refusals_are_acknowledged(bench: Bench) -> None:
    one = run_id()
    bench.deliveries.claims.append(ClaimBatch(refusals=(Refusal(one, "terminal"),)))
    assert bench.runlane.execute_deliveries(records([one])) == ()
    assert not bench.transport.published


def test_a_wakeup_that_comes_a_moment_early_is_held_until_its_run_is_due(bench: Bench) -> None:
    run = claimed("quick", "1")
    bench.deliveries.claims += [ClaimBatch(refusals=(Refusal(run.run_id, "not_due", timedelta(milliseconds=60)),)), ClaimBatch((run,))]
    began = monotonic()
    assert bench.runlane.execute_deliveries(records([run]), lambda: 60) == ()
    assert monotonic() - began >= 0.06
    assert bench.deliveries.outcomes[run.run_id].kind == OutcomeKind.SUCCEEDED


def test_a_throttled_run_is_held_for_longer_and_outside_the_slots() -> None:
    later, now = claimed("quick", "1"), claimed("quick", "2")
    bench = Bench([quick], worker_concurrency=1)
    turn = timedelta(seconds=1.05)
    bench.deliveries.claims += [ClaimBatch((now,), (Refusal(later.run_id, "throttled", turn),)), ClaimBatch((later,))]
    began = monotonic()
    assert bench.runlane.execute_deliveries(records([later, now]), lambda: 60) == ()
    assert monotonic() - began >= 1.05
    assert list(bench.deliveries.outcomes) == [now.run_id, later.run_id]
    assert not bench.transport.published


def test_a_wakeup_that_comes_much_too_early_is_sent_again_with_a_delay(bench: Bench) -> None:
    one, two = run_id(), run_id()
    refusals = (Refusal(one, "not_due", timedelta(seconds=40)), Refusal(two, "not_due", timedelta(hours=1)))
    bench.deliveries.claims.append(ClaimBatch(refusals=refusals))
    assert bench.runlane.execute_deliveries(records([one, two])) == ()
    assert [(sent.run_id, sent.delay, sent.hint) for sent in bench.transport.published] == [(one, timedelta(seconds=40), True)]


def test_an_expired_lease_is_recovered_in_place(bench: Bench) -> None:
    lease = ExpiredLease(run_id(), "old", "quick", "main", 1, 0, 3, cancellation_requested=False)
    last = ExpiredLease(run_id(), "old", "gone", "main", 3, 2, 3, cancellation_requested=False)
    bench.deliveries.claims.append(ClaimBatch(expired=(lease, last)))
    bench.runlane.execute_deliveries(records([lease.run_id, last.run_id]))
    outcomes = bench.deliveries.outcomes
    assert [(outcomes[one.run_id].kind, outcomes[one.run_id].final) for one in (lease, last)] == [
        ("lease_expired", False),
        ("lease_expired", True),
    ]


def test_a_hand_over_is_one_round_trip_and_wakes_nobody(bench: Bench) -> None:
    first, second, third = (claimed("quick", str(number)) for number in range(3))
    bench.deliveries.oldest += [ClaimBatch((second,)), ClaimBatch((third,))]
    assert delivered(bench, first).keys() == {first.run_id, second.run_id, third.run_id}
    assert bench.deliveries.calls == ["claim", "settle and claim", "settle and claim", "settle and claim"]
    assert bench.deliveries.limits == [10, 10, 10]
    assert not bench.transport.published


def test_a_retry_that_is_due_at_once_may_be_gone_on_with(bench: Bench) -> None:
    run = claimed("broken", "1")
    bench.deliveries.oldest.append(ClaimBatch((run._replace(token="next", failures=1),)))
    delivered(bench, run)
    assert [one.token for group in bench.deliveries.settled for one in group] == ["token", "next"]


def test_what_is_not_taken_here_is_published_and_marked(bench: Bench) -> None:
    mine, others, later = claimed("quick", "1"), Wakeup(run_id(), "main"), Wakeup(run_id(), "main", delay=timedelta(seconds=9), hint=True)
    bench.deliveries.oldest.append(ClaimBatch((mine,), wakeups=(others, later)))
    delivered(bench, claimed("quick", "1"))
    assert bench.transport.published == [others, later]
    bench.runlane.close()
    assert [result.run_id for result in bench.storage.triggers.marked] == [others.run_id]


def test_going_on_can_be_switched_off() -> None:
    bench = Bench(TASKS, continue_inline_for="0s")
    delivered(bench, claimed("quick", "1"))
    assert bench.deliveries.calls == ["claim", "settle"]


def test_worker_concurrency_bounds_the_attempts_under_way() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def work() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.02)
        with lock:
            now[0] -= 1

    @task("busy")
    def busy(payload: int) -> None:
        work()

    @task("busy.async")
    async def busy_async(payload: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        await asyncio.sleep(0.02)
        with lock:
            now[0] -= 1

    bench = Bench([busy, busy_async], worker_concurrency=4)
    delivered(bench, *(claimed(name, "1") for name in ("busy", "busy.async") * 8))
    assert most[0] == 4
    assert len(bench.deliveries.outcomes) == 16


def test_an_attempt_that_ends_early_is_settled_while_the_others_go_on() -> None:
    release = threading.Event()

    @task("blocked")
    def blocked(payload: int) -> bool:
        return release.wait(60)

    bench = Bench([quick, blocked])
    fast, slow = claimed("quick", "1"), claimed("blocked", "1")

    def settle(settlements: Sequence[Settlement]) -> SettleBatch:
        if any(one.run_id == fast.run_id for one in settlements):
            release.set()
        return SettleBatch(tuple(SettledRun(one.run_id, Status.SUCCEEDED) for one in settlements), ())

    bench.deliveries.on_settle = settle
    assert delivered(bench, slow, fast)[slow.run_id].result == "true"
    assert len(bench.deliveries.settled) == 2


def test_middleware_wraps_attempts_in_order() -> None:
    seen: list[str] = []

    def outer(run: Context, call_next: Callable[[], Any]) -> Any:
        seen.append(f"outer {run.task_id}")
        return call_next()

    def inner(run: Context, call_next: Callable[[], Any]) -> Any:
        seen.append(f"inner {run.attempt}")
        return call_next()

    bench = Bench(TASKS, middleware=[outer, inner])
    assert only(bench, claimed("quick", "5")).result == "5"
    assert only(bench, claimed("quick.async", "6")).result == "6"
    assert seen == ["outer quick", "inner 1", "outer quick.async", "inner 1"]


def test_an_async_middleware_wraps_async_handlers() -> None:
    async def double(run: Context, call_next: Callable[[], Any]) -> Any:
        return 2 * await call_next()

    bench = Bench([quick_async], middleware=[double])
    assert only(bench, claimed("quick.async", "6")).result == "12"


def test_storage_out_of_reach_at_settling_is_waited_for(bench: Bench) -> None:
    troubles = [UnavailableError("storage_unavailable", "gone")] * 2

    def settle(settlements: Sequence[Settlement]) -> SettleBatch:
        if troubles:
            raise troubles.pop()
        return SettleBatch(tuple(SettledRun(one.run_id, Status.SUCCEEDED) for one in settlements), ())

    bench.deliveries.on_settle = settle
    assert only(bench, claimed("quick", "1")).kind == OutcomeKind.SUCCEEDED


def test_one_settlement_that_storage_chokes_on_fails_alone(bench: Bench) -> None:
    good, bad = claimed("quick", "1"), claimed("quick", "2")

    def settle(settlements: Sequence[Settlement]) -> SettleBatch:
        if any(one.run_id == bad.run_id for one in settlements):
            raise RuntimeError("choked")
        return SettleBatch(tuple(SettledRun(one.run_id, Status.SUCCEEDED) for one in settlements), ())

    bench.deliveries.on_settle = settle
    bench.deliveries.claims.append(ClaimBatch((good, bad)))
    assert bench.runlane.execute_deliveries(records([good, bad])) == ("m1",)
    assert good.run_id in bench.deliveries.outcomes


def test_a_refused_result_is_reported(bench: Bench) -> None:
    run = claimed("quick", "1")
    bench.deliveries.on_settle = lambda settlements: SettleBatch((), tuple(one.run_id for one in settlements))
    delivered(bench, run)
    assert bench.telemetry.named("settle.refused") == [{"run_ids": (run.run_id,)}]
