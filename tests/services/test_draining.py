"""A delivery without an end, while its only attempt goes on."""

from __future__ import annotations

import threading
import time

from runlane.domain.task import task
from runlane.ports.clock import SystemClock
from runlane.ports.stores import ClaimBatch
from tests.services.fakes import claimed
from tests.services.tasks import Bench

gate = threading.Event()
started = threading.Event()


class CountingClock(SystemClock):
    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic()


@task("gated")
def gated(payload: int) -> None:
    started.set()
    gate.wait(60)


def test_a_worker_that_takes_no_more_in_sleeps_until_its_attempts_have_ended() -> None:
    clock = CountingClock()
    bench = Bench([gated], clock=clock)
    run = claimed("gated", "1")
    bench.deliveries.oldest.append(ClaimBatch((run,)))
    worker = bench.runlane.worker("drain")
    assert started.wait(60)
    time.sleep(0.05)
    began = clock.looks
    assert not worker.wait(0.2), "dry, with an attempt under way"
    worker.stop()
    assert not worker.wait(0.2), "stopped, with an attempt under way"
    assert clock.looks - began < 50, "it did not sleep"
    gate.set()
    assert worker.wait(60)
    assert worker.state.attempts == {"succeeded": 1}
