"""Where runs go one at a time, one thread runs, settles and goes on; the delivery's own thread sees to everything else."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest

from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.ports.stores import ClaimBatch, Refusal, SettleBatch, SettledRun, Wakeup
from tests.services.fakes import claimed, run_id
from tests.services.tasks import Bench
from tests.services.test_delivery import delivered, quick, quick_async, records


def _succeeded(settlements: Sequence[Settlement]) -> SettleBatch:
    return SettleBatch(tuple(SettledRun(one.run_id, Status.SUCCEEDED) for one in settlements), ())


def test_a_series_is_settled_by_the_threads_that_run_it() -> None:
    ran: list[str] = []
    settled: list[str] = []

    @task("where")
    def where(payload: int) -> None:
        ran.append(threading.current_thread().name)

    def settle(settlements: Sequence[Settlement]) -> SettleBatch:
        settled.append(threading.current_thread().name)
        return _succeeded(settlements)

    bench = Bench([where])
    bench.deliveries.on_settle = settle
    bench.deliveries.oldest += [ClaimBatch((claimed("where", "1"),)) for _ in range(200)]
    assert len(delivered(bench, claimed("where", "1"))) == 201
    # The delivery's thread may come between when its wait for something else ends; as a rule it does not.
    assert sum(one == other for one, other in zip(ran, settled, strict=True)) > 180


def test_a_series_widens_narrows_and_mixes_kinds_of_handlers() -> None:
    bench = Bench([quick, quick_async])
    groups = [[claimed(("quick", "quick.async")[(size + place) % 2], "1") for place in range(size)] for size in (1, 1, 7, 1, 1, 3, 1, 1)]
    bench.deliveries.oldest += [ClaimBatch(tuple(group)) for group in groups]
    outcomes = delivered(bench, claimed("quick", "1"))
    assert all(run.run_id in outcomes for group in groups for run in group)


def test_what_a_series_sets_free_is_published_while_it_goes_on() -> None:
    bench = Bench([quick])
    published_by: list[str] = []
    freed = [Wakeup(run_id(), "main") for _ in range(3)]
    bench.deliveries.oldest += [ClaimBatch((claimed("quick", "1"),), wakeups=(wakeup,)) for wakeup in freed]
    publish = bench.transport.publish

    def noted(wakeups: Sequence[Wakeup]) -> object:
        published_by.append(threading.current_thread().name)
        return publish(wakeups)

    bench.transport.publish = noted  # type: ignore[method-assign,assignment]
    delivered(bench, claimed("quick", "1"))
    assert bench.transport.published == freed
    assert set(published_by) == {threading.current_thread().name}


def test_a_settlement_that_ends_its_thread_fails_the_delivery() -> None:
    def settle(settlements: Sequence[Settlement]) -> SettleBatch:
        raise KeyboardInterrupt

    bench = Bench([quick])
    bench.deliveries.on_settle = settle
    run = claimed("quick", "1")
    bench.deliveries.claims.append(ClaimBatch((run,)))
    with pytest.raises(KeyboardInterrupt):
        bench.runlane.execute_deliveries(records([run]))


def test_a_series_notices_a_deadline_that_is_sooner_than_what_it_waited_for() -> None:
    @task("brief", max_attempt_duration="100ms")
    def brief(payload: int, ctx: object) -> None:
        while True:
            ctx.check()  # type: ignore[attr-defined]
            time.sleep(0.005)

    @task("slow")
    def slow(payload: int) -> None:
        time.sleep(0.05)  # Long enough that the delivery's thread waits for the next thing that is due, seconds away.

    bench = Bench([slow, brief], continue_inline_for="60s")
    sooner = claimed("brief", "1")
    bench.deliveries.oldest.append(ClaimBatch((sooner,)))
    began = time.monotonic()
    outcomes = delivered(bench, claimed("slow", "1"))
    assert outcomes[sooner.run_id].kind == OutcomeKind.RETRY
    assert time.monotonic() - began < 30


def test_a_series_claims_what_becomes_due_meanwhile() -> None:
    @task("steady")
    def steady(payload: int) -> None:
        time.sleep(0.02)

    bench = Bench([steady, quick])
    early, first = claimed("quick", "1"), claimed("steady", "1")
    bench.deliveries.claims += [
        ClaimBatch((first,), refusals=(Refusal(early.run_id, "early", timedelta(seconds=0.1)),)),
        ClaimBatch((early,)),
    ]
    bench.deliveries.oldest += [ClaimBatch((claimed("steady", "1"),)) for _ in range(20)]
    assert bench.runlane.execute_deliveries(records([first, early])) == ()
    order = [one.run_id for group in bench.deliveries.settled for one in group]
    assert order.index(early.run_id) < 15
