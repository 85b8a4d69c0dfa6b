"""An attempt that ignores its deadline, in a resident worker: it keeps its slot while its thread lives."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from runlane.domain.queue import Queue
from runlane.domain.retry import Fixed, Retry
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.services.context import Context
from tests.functions.conftest import OpenWorld
from tests.waiting import until

limited = Queue("main", default=True, concurrency_limit=1)


class Deaf:
    """A task whose first attempt ignores its deadline until the gate opens; counts how many attempts live now, and at most."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.living = self.most = 0
        self.task = task("deaf", max_attempt_duration="100ms", retry=Retry(max_attempts=3, backoff=Fixed("0s")))(self.handle)

    def handle(self, number: int) -> str:
        self.living += 1
        self.most = max(self.most, self.living)
        self.gate.wait(60)
        self.living -= 1
        return "late"


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    made = Deaf()
    yield made
    made.gate.set()


@pytest.mark.parametrize("major", [18, 15])
def test_it_never_runs_beside_its_retry(open_world: OpenWorld, deaf: Deaf) -> None:
    world = open_world([deaf.task], [limited], continue_inline_for="0s")
    run_id = world.runlane.trigger(deaf.task, 1).run.run_id
    assert world.deliver(*world.wire.take(), seconds=3.0) == {"batchItemFailures": []}
    assert world.get(run_id).status is Status.RUNNING, "its thread lives"
    assert (world.count("lease"), deaf.living) == (1, 1)
    world.deliver(run_id)
    world.tick()
    assert (world.get(run_id).attempt, deaf.living) == (1, 1)
    deaf.gate.set()
    until(lambda: world.get(run_id).status is not Status.RUNNING)
    assert world.get(run_id).failures == 1, "it was late, whatever it returned"
    assert deaf.living == 0
    world.tick()
    world.deliver_sent()
    record = world.get(run_id)
    assert (record.status, record.attempt, deaf.most) == (Status.SUCCEEDED, 2, 1)
    assert [one.failure and one.failure.code for one in world.runlane.runs.attempts(run_id)] == ["timed_out", None]


def test_its_neighbours_are_settled_meanwhile(open_world: OpenWorld, deaf: Deaf) -> None:
    @task("quick")
    def quick(number: int) -> int:
        return number

    world = open_world([deaf.task, quick], worker_concurrency=2)
    run_id = world.runlane.trigger(deaf.task, 1).run.run_id
    others = [result.run.run_id for result in world.runlane.trigger_many(quick, range(5))]
    world.deliver(*world.wire.take(), seconds=3.0)
    assert world.statuses(others) == {Status.SUCCEEDED}
    assert world.get(run_id).status is Status.RUNNING
    deaf.gate.set()
    until(lambda: world.get(run_id).status is Status.RETRYING)


def test_when_strays_hold_every_place_messages_stay_in_the_queue(open_world: OpenWorld, deaf: Deaf) -> None:
    @task("quick")
    def quick(number: int) -> int:
        return number

    world = open_world([deaf.task, quick], worker_concurrency=1)
    run_id = world.runlane.trigger(deaf.task, 1).run.run_id
    world.deliver(*world.wire.take(), seconds=3.0)
    other = world.runlane.trigger(quick, 1).run.run_id
    assert len(world.deliver(other)["batchItemFailures"]) == 1
    deaf.gate.set()
    until(lambda: world.get(run_id).status is not Status.RUNNING)
    until(lambda: world.deliver(other) == {"batchItemFailures": []})
    assert world.get(other).status is Status.SUCCEEDED


def test_those_who_look_at_the_time_end_as_timed_out(open_world: OpenWorld) -> None:
    @task("checking", max_attempt_duration="50ms", retry=Retry(max_attempts=1))
    def checking(number: int, ctx: Context) -> None:
        while True:
            try:
                ctx.check()
            except Exception:
                pytest.fail("a suspension is no Exception")
            time.sleep(0.005)

    @task("sleeping", max_attempt_duration="50ms", retry=Retry(max_attempts=1))
    async def sleeping(number: int) -> None:
        await asyncio.sleep(8)

    world = open_world([checking, sleeping])
    runs = [world.runlane.trigger(one, 1).run.run_id for one in (checking, sleeping)]
    world.deliver_sent()
    for run_id in runs:
        record = world.get(run_id)
        assert (record.status, record.failure and record.failure.code) == (Status.FAILED, "timed_out")


def test_what_cannot_start_in_time_is_handed_back_with_a_new_wakeup_and_uncounted(open_world: OpenWorld) -> None:
    @task("slow")
    def slow(number: int, ctx: Context) -> None:
        time.sleep(ctx.remaining() - 0.01)

    world = open_world([slow], [limited, Queue("other")], worker_concurrency=1)
    first, second = (world.runlane.trigger(slow, 1, queue=queue).run.run_id for queue in (limited, Queue("other")))
    assert world.deliver(*world.wire.take(), seconds=1.5) == {"batchItemFailures": []}
    assert world.get(first).status is Status.SUCCEEDED
    record = world.get(second)
    assert (record.status, record.attempt, record.failures) == (Status.QUEUED, 0, 0)
    assert [wakeup.run_id for wakeup in world.wire.sent] == [second]
    world.deliver(*world.wire.take(), seconds=1.5)
    assert world.get(second).attempt == 1


def test_an_attempt_that_never_fits_is_put_off_and_says_why(open_world: OpenWorld) -> None:
    @task("long", max_attempt_duration="10m")
    def long(number: int) -> None: ...

    world = open_world([long])
    run_id = world.runlane.trigger(long, 1).run.run_id
    world.deliver(*world.wire.take(), seconds=30)
    record = world.get(run_id)
    assert (record.status, record.attempt) == (Status.SCHEDULED, 0)
    reasons = [event.data.get("reason", "") for event in world.runlane.runs.events(run_id) if event.data]
    assert any("max_attempt_duration_too_long" in reason for reason in reasons)
