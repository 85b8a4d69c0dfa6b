"""What a polling worker asks of storage, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from runlane.domain.errors import ConfigurationError, RunlaneError, UnavailableError
from runlane.domain.task import task
from runlane.ports.maintenance import PhaseResult
from runlane.ports.stores import ClaimBatch, Look, Wakeup
from runlane.services.resident.poller import LONGEST_PAUSE, SHORTEST_PAUSE, Poller
from runlane.services.resident.polling import Polling
from runlane.services.resident.vitals import Vitals
from runlane.services.stop import Stop
from tests.services.fakes import claimed, run_id
from tests.services.tasks import Bench
from tests.services.test_delivery import quick
from tests.waiting import until

GONE = UnavailableError("storage_unavailable", "gone")
MISSING = ConfigurationError(["run `runlane migrate`"], code="schema_missing")
NOTHING = Look(is_dispatched=False)


class Time:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Polled:
    """A poller with its storage in reach and its time at hand."""

    def __init__(self, **options: bool) -> None:
        self.time = Time()
        self.bench = Bench([quick], clock=self.time)
        self.stop = Stop(self.time)
        self.poller = Poller(self.bench.runlane._worker, self.bench.storage, self.stop, Vitals(self.time), **options)

    def pause(self) -> float:
        """How long the poller wants to wait after a look at an idle storage."""
        self.poller.take(5)
        pause = self.poller.next_at - self.time.now
        self.time.now = max(self.time.now, self.poller.next_at)
        return round(pause, 3)


@pytest.fixture
def polled() -> Polled:
    made = Polled()
    made.poller.take(5)
    made.time.now = made.poller.next_at
    return made


def test_pauses_double_while_nothing_is_due_and_start_over_after_work(polled: Polled) -> None:
    pauses = [polled.pause() for _ in range(9)]
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, LONGEST_PAUSE]
    assert polled.bench.deliveries.calls == ["oldest"], "an idle poller only looks"
    polled.poller.rest(polled.time.now)
    assert round(polled.poller.next_at - polled.time.now, 3) == SHORTEST_PAUSE


def test_a_ring_claims_at_once_and_says_how_much_room_there_is(polled: Polled) -> None:
    polled.pause()
    run = claimed("quick", "1")
    polled.bench.deliveries.oldest.append(ClaimBatch((run,)))
    polled.poller.ring()
    assert polled.poller.next_at < polled.time.now
    assert polled.poller.take(3).claims == (run,)
    assert polled.bench.deliveries.limits[-1] == 3


def test_what_was_only_recorded_is_dispatched_and_what_another_must_run_is_published(polled: Polled) -> None:
    mine, other = claimed("quick", "1"), run_id()
    polled.bench.deliveries.looks.append(Look(is_dispatched=False, recorded=("main",)))
    polled.bench.deliveries.oldest.append(ClaimBatch((mine,)))
    polled.bench.storage.triggers.wakeups = (Wakeup(mine.run_id, "main"), Wakeup(other, "main"))
    found = polled.poller.take(1)
    assert polled.bench.storage.triggers.dispatched == [("main",)]
    assert (found.claims, [wakeup.run_id for wakeup in found.wakeups]) == ((mine,), [other])


def test_due_timers_are_fired_and_the_next_look_is_when_the_next_is_due(polled: Polled) -> None:
    polled.bench.deliveries.looks += [Look(is_dispatched=False, due_in=timedelta(milliseconds=due)) for due in (-1, 15)]
    polled.bench.storage.maintenance.answers["due_timers"] = [PhaseResult(1, more=False, wakeups=(Wakeup(run_id(), "elsewhere"),))]
    assert len(polled.poller.take(1).wakeups) == 1
    assert polled.bench.storage.maintenance.calls == ["due_timers"]
    polled.time.now = polled.poller.next_at
    assert polled.pause() == 0.015


def test_where_there_is_no_room_due_timers_are_fired_all_the_same_once_a_second(polled: Polled) -> None:
    due, maintenance = Wakeup(run_id(), "elsewhere"), polled.bench.storage.maintenance
    polled.bench.deliveries.looks += [Look(is_dispatched=True, due_in=timedelta(milliseconds=-1)), GONE, NOTHING]
    maintenance.answers["due_timers"] = [PhaseResult(1, more=False, wakeups=(due,))]
    assert polled.poller.tend(polled.time.now) == (due,)
    assert polled.poller.tend(polled.time.now + 0.9) == ()
    assert len(polled.bench.deliveries.looks) == 2, "it has not looked again"
    for seconds in (LONGEST_PAUSE, 2 * LONGEST_PAUSE):
        assert polled.poller.tend(polled.time.now + seconds) == (), "trouble with storage is left to those that claim"
    assert maintenance.calls == ["due_timers"]
    assert polled.bench.deliveries.calls == ["oldest"], "nothing was claimed"


def test_a_worker_whose_places_are_all_taken_tends_to_what_is_due() -> None:
    gate = threading.Event()

    @task("gated")
    def gated(payload: int) -> None:
        gate.wait(9)

    bench = Bench([gated], lease_duration="300ms", worker_concurrency=1)
    bench.deliveries.oldest.append(ClaimBatch((claimed("gated", "1"),)))
    bench.deliveries.looks += [Look(is_dispatched=True), *[Look(is_dispatched=False, due_in=timedelta(0))] * 99]
    worker = bench.runlane._worker
    stop = Stop(worker.clock)
    running = threading.Thread(target=Polling(worker, Poller(worker, bench.storage, stop, Vitals(worker.clock)), stop, None).run)
    running.start()
    until(lambda: "due_timers" in bench.storage.maintenance.calls)
    assert not bench.deliveries.outcomes
    gate.set()
    stop.ask(9)
    running.join(9)
    assert not running.is_alive()


def test_the_next_look_is_when_a_throttle_permits_the_next_start(polled: Polled) -> None:
    polled.bench.deliveries.looks.append(Look(is_dispatched=False, starts_in=timedelta(milliseconds=15)))
    assert polled.pause() == 0.015


def test_a_start_that_is_overdue_and_not_made_is_not_asked_for_all_the_time(polled: Polled) -> None:
    polled.bench.deliveries.looks += [Look(is_dispatched=False, starts_in=timedelta(milliseconds=-15))] * 4
    assert [polled.pause() for _ in range(4)] == [0.02, 0.04, 0.08, 0.16]


def test_a_drain_waits_for_what_a_throttle_holds_back() -> None:
    drained = Polled(until_dry=True)
    drained.bench.deliveries.looks += [Look(is_dispatched=False, starts_in=timedelta(minutes=1)), NOTHING]
    drained.poller.take(1)
    assert drained.poller.is_open
    drained.poller.take(1)
    assert not drained.poller.is_open


def test_a_poller_outlives_trouble_with_storage_and_waits_longer_each_time(polled: Polled) -> None:
    polled.bench.deliveries.looks += [GONE] * 8
    assert [polled.pause() for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert polled.poller.is_open
    polled.pause()
    assert polled.poller.error is None


@pytest.mark.parametrize(
    ("made", "error"),
    [(lambda: Polled(until_dry=True), GONE), (Polled, MISSING)],
)
def test_trouble_that_no_waiting_mends_closes_it(made: Callable[[], Polled], error: RunlaneError) -> None:
    polled = made()
    polled.bench.deliveries.looks.append(error)
    polled.poller.take(1)
    assert (polled.poller.error, polled.poller.is_open) == (error, False)


def test_a_drain_is_over_when_nothing_is_due_and_goes_on_after_work(polled: Polled) -> None:
    drained = Polled(until_dry=True)
    drained.bench.deliveries.looks += [Look(is_dispatched=True), NOTHING]
    drained.poller.take(1)
    assert drained.poller.is_open, "somebody else may be about to claim it, or give it up"
    drained.poller.take(1)
    assert not drained.poller.is_open
    drained.poller.rest(drained.time.now)
    assert drained.poller.is_open
    assert polled.poller.is_open


def test_a_stop_closes_it(polled: Polled) -> None:
    polled.stop.ask(1)
    assert not polled.poller.is_open
