from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from runlane.domain.outcome import OutcomeKind
from runlane.domain.task import task
from runlane.ports.stores import ClaimedRun
from runlane.services.attempt import Attempt
from runlane.services.batch import Batch
from runlane.services.budget import TimeBudget
from runlane.services.context import Cancelled, Context, LeaseLost
from runlane.services.heartbeat import Heartbeat
from tests.services.fakes import FakeDeliveries, FakeTelemetry, claimed
from tests.services.tasks import Bench, ship
from tests.services.test_delivery import delivered


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def attempt(run: ClaimedRun) -> Attempt:
    bench = Bench()
    clock = Clock()
    return Attempt(run, ship, Batch(bench.runlane._worker, TimeBudget(clock, None, 5), {}), clock, clock.now)


@pytest.fixture
def store() -> FakeDeliveries:
    return FakeDeliveries()


def heartbeat(store: FakeDeliveries, clock: Clock) -> Heartbeat:
    return Heartbeat(store, clock, FakeTelemetry(), lease_for=timedelta(seconds=60))


def test_leases_are_looked_at_often_and_extended_within_a_third_of_their_length(store: FakeDeliveries) -> None:
    clock = Clock()
    beats = heartbeat(store, clock)
    beats.hold([attempt(claimed("orders.ship")), attempt(claimed("orders.ship"))])
    beats._extended_at = clock.now
    for _ in range(8):
        clock.now += beats.interval
        beats.beat()
    assert store.calls == ["read", "read", "read", "heartbeat"] * 2


def test_what_was_asked_of_a_run_reaches_its_context(store: FakeDeliveries) -> None:
    beats = heartbeat(store, Clock())
    mine = attempt(claimed("orders.ship"))
    context = Context(mine, None)
    beats.hold([mine])
    beats.beat()
    assert not context.is_cancellation_requested()
    store.states = {mine.claim.run_id: True}
    beats.beat()
    assert context.is_cancellation_requested()
    with pytest.raises(Cancelled):
        context.check()


def test_a_lease_that_is_missing_from_the_answer_is_lost(store: FakeDeliveries) -> None:
    beats = heartbeat(store, Clock())
    mine = attempt(claimed("orders.ship"))
    beats.hold([mine])
    store.states = {}
    beats.beat()
    with pytest.raises(LeaseLost):
        Context(mine, None).check()


def test_an_older_attempt_does_not_drop_the_lease_of_a_newer_one(store: FakeDeliveries) -> None:
    run = claimed("orders.ship")
    beats = heartbeat(store, Clock())
    old, new = attempt(run), attempt(run)
    beats.hold([old])
    beats.hold([new])
    beats.drop([old])
    assert beats.holds(run.run_id)


@task("patient")
def patient(payload: int, ctx: Context) -> None:
    while True:
        ctx.check()
        time.sleep(0.005)


@task("waiter")
def waiter(payload: int, ctx: Context) -> bool:
    ends_at = time.monotonic() + 60
    while not ctx.is_cancellation_requested() and time.monotonic() < ends_at:
        time.sleep(0.005)
    return ctx.is_cancellation_requested()


def test_a_running_attempt_learns_of_its_cancellation_and_stops() -> None:
    bench = Bench([patient, waiter], lease_duration="60ms")
    stopping, returning = claimed("patient", "1"), claimed("waiter", "1")
    bench.deliveries.states = {stopping.run_id: True, returning.run_id: True}
    outcomes = delivered(bench, stopping, returning)
    assert (outcomes[stopping.run_id].kind, outcomes[stopping.run_id].reason) == (OutcomeKind.RELEASED, "cancelled")
    assert outcomes[returning.run_id].result == "true"


def test_quick_attempts_start_no_heartbeat() -> None:
    bench = Bench()
    delivered(bench, claimed("orders.ship", '{"number":1}'))
    assert not {"read", "heartbeat"} & set(bench.deliveries.calls)


def test_the_thread_survives_trouble_and_ends_with_the_last_lease(store: FakeDeliveries) -> None:
    telemetry = FakeTelemetry()
    beats = Heartbeat(store, Clock(), telemetry, lease_for=timedelta(milliseconds=30))
    troubles = [RuntimeError("gone")]
    answer = store._states

    def states(leases: object) -> object:
        if troubles:
            raise troubles.pop()
        return answer(leases)  # type: ignore[arg-type]

    store._states = states  # type: ignore[assignment,method-assign]
    mine = attempt(claimed("orders.ship"))
    beats.hold([mine])
    beats.ensure_beating()
    eventually(lambda: len(store.calls) > 3)
    assert len(telemetry.named("heartbeat.failed")) == 1
    beats.drop([mine])
    eventually(lambda: not beats._is_beating)


def eventually(claim: Callable[[], bool], seconds: float = 60) -> None:
    ends_at = time.monotonic() + seconds
    while not claim() and time.monotonic() < ends_at:
        time.sleep(0.005)
    assert claim()
