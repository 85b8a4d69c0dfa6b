"""One run, executed here and now, on the real storage."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from runlane import ConflictError, Context, ContractError, Fixed, Queue, Release, Retry, RunNowResult, Source, Status, TriggerOutcome, task
from tests.functions.conftest import OpenWorld
from tests.functions.world import World
from tests.waiting import until

main = Queue("main", default=True)
one = Queue("one", concurrency_limit=1)
pytestmark = pytest.mark.postgres


@pytest.fixture(params=[18, 15], ids=lambda major: f"postgres{major}")
def major(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@task("double", queue=one, concurrency_key=lambda number: f"k{number}")
def double(number: int) -> int:
    return number * 2


@task("double.later")
async def double_later(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


@task("fail", retry=Retry(max_attempts=2, backoff=Fixed("0s")))
def fail(number: int) -> int:
    raise ValueError("no")


@task("wait")
def wait(number: int) -> Release:
    return Release("10m", reason="not ready")


@task("oversleep", max_attempt_duration="100ms")
def oversleep(seconds: float, ctx: Context) -> None:
    while True:
        ctx.check()
        time.sleep(0.01)


ALL = (double, double_later, fail, wait, oversleep)


def _open(open_world: OpenWorld, *more: Any, **options: Any) -> World:
    return open_world([*ALL, *more], [main, one], **options)


@pytest.mark.parametrize("which", [double, double_later], ids=["def", "async def"])
def test_a_run_now_is_recorded_executed_and_settled(open_world: OpenWorld, which: Any) -> None:
    world = _open(open_world)
    answer = world.runlane.run_now(which, 21, actor="ann", meta={"why": "now"})
    assert (answer.outcome, answer.run.status, answer.result, answer.failure) == (TriggerOutcome.CREATED, Status.SUCCEEDED, 42, None)
    assert (answer.run.source, answer.run.actor, answer.run.meta) == (Source.RUN_NOW, "ann", {"why": "now"})
    assert world.lane.events(answer.run.run_id) == ["run.created", "run.dispatched", "run.claimed", "run.succeeded"]
    assert not world.wire.sent


def test_exactly_one_attempt_is_made_and_a_retry_goes_the_usual_way(open_world: OpenWorld) -> None:
    world = _open(open_world)
    answer = world.runlane.run_now(fail, 1)
    assert (answer.run.status, answer.run.attempt, answer.result) == (Status.RETRYING, 1, None)
    assert answer.failure is not None
    assert answer.failure.type == "ValueError"
    world.deliver_sent()
    assert (world.get(answer.run.run_id).status, world.get(answer.run.run_id).attempt) == (Status.FAILED, 2)


def test_a_release_goes_the_usual_way(open_world: OpenWorld) -> None:
    world = _open(open_world)
    answer = world.runlane.run_now(wait, 1)
    assert (answer.run.status, answer.failure) == (Status.RELEASED, None)
    (hint,) = world.wire.delayed
    assert (hint.run_id, hint.hint) == (answer.run.run_id, True)


def test_without_capacity_nothing_is_recorded(open_world: OpenWorld) -> None:
    world = _open(open_world)
    busy = world.runlane.trigger(double, 1).run.run_id
    with pytest.raises(ConflictError) as refused:
        world.runlane.run_now(double, 1, idempotency_key="i", singleton_key="s")
    assert (refused.value.code, refused.value.retryable) == ("queue_at_capacity", True)
    assert (world.count("run"), world.count("idempotency_key"), world.count("singleton_key")) == (1, 0, 0)
    world.deliver(busy)
    assert world.runlane.run_now(double, 1, idempotency_key="i", singleton_key="s").result == 2


def test_a_paused_queue_refuses(open_world: OpenWorld) -> None:
    world = _open(open_world)
    world.runlane.queues.pause(one, concurrency_key="k1")
    with pytest.raises(ConflictError) as refused:
        world.runlane.run_now(double, 1)
    assert refused.value.code == "paused"
    assert world.runlane.run_now(double, 2).result == 4


def test_a_duplicate_is_answered_and_not_executed(open_world: OpenWorld) -> None:
    world = _open(open_world)
    owner = world.runlane.trigger(double, 1, idempotency_key="i").run.run_id
    answer = world.runlane.run_now(double, 1, idempotency_key="i")
    assert (answer.outcome, answer.run.run_id, answer.run.status) == (TriggerOutcome.DUPLICATE, owner, Status.QUEUED)
    assert answer.payload_matches is True
    world.runlane.trigger(double, 5, singleton_key="s")
    assert world.runlane.run_now(double, 6, singleton_key="s").outcome is TriggerOutcome.SINGLETON_ACTIVE


def test_an_attempt_ends_at_its_longest_duration(open_world: OpenWorld) -> None:
    world = _open(open_world)
    answer = world.runlane.run_now(oversleep, 9.0)
    assert answer.failure is not None
    assert (answer.run.status, answer.failure.code) == (Status.RETRYING, "timed_out")


def test_a_handler_that_holds_the_only_place_may_run_another_task_now(open_world: OpenWorld) -> None:
    inner: list[RunNowResult] = []

    @task("outer")
    def outer(number: int) -> None:
        inner.append(world.runlane.run_now(double, number))

    world = _open(open_world, outer, worker_concurrency=1)
    run = world.runlane.trigger(outer, 4).run.run_id
    world.deliver(run)
    assert (world.get(run).status, inner[0].result) == (Status.SUCCEEDED, 8)


def test_a_caller_that_is_interrupted_leaves_the_attempt_to_its_thread(open_world: OpenWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from runlane.services.watch import Watch

    started, go_on = threading.Event(), threading.Event()

    @task("held")
    def held(number: int) -> int:
        started.set()
        go_on.wait(60)
        return number

    def interrupted(self: Watch) -> None:
        started.wait(60)
        raise KeyboardInterrupt

    world = _open(open_world, held)
    monkeypatch.setattr(Watch, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.runlane.run_now(held, 1)
    ((run_id,),) = world.lane.connection.execute("SELECT run_id::text FROM runlane.run").fetchall()
    assert world.get(run_id).status is Status.RUNNING
    go_on.set()
    until(lambda: world.get(run_id).status is not Status.RUNNING)
    assert (world.get(run_id).status, world.get(run_id).result) == (Status.SUCCEEDED, 1)


@pytest.mark.parametrize("option", [{"delay": "1s"}, {"run_at": None}, {"other": 1}])
def test_times_and_unknown_options_are_refused(open_world: OpenWorld, option: dict[str, Any]) -> None:
    world = _open(open_world)
    with pytest.raises(ContractError):
        world.runlane.run_now(double, 1, **option)
    assert world.count("run") == 0


def test_a_long_attempt_keeps_its_lease(open_world: OpenWorld) -> None:
    @task("long")
    def long(number: int) -> int:
        time.sleep(0.9)
        return number

    world = _open(open_world, long, lease_duration=timedelta(milliseconds=600))
    assert world.runlane.run_now(long, 3).result == 3


def test_async_handlers_share_one_loop_and_what_belongs_to_it(open_world: OpenWorld) -> None:
    loops = []

    @task("look")
    async def look(number: int) -> int:
        loops.append(asyncio.get_running_loop())
        return number

    world = _open(open_world, look)
    for number in range(2):
        assert world.runlane.run_now(look, number).run.status is Status.SUCCEEDED
    world.runlane.trigger(look, 3)
    assert world.runlane.execute_next() is not None
    assert len(set(loops)) == 1


def test_an_async_handler_that_ignores_its_deadline_goes_on_and_gives_its_slot_back(open_world: OpenWorld) -> None:
    go_on = threading.Event()

    @task("deaf", queue=one, max_attempt_duration="100ms", retry=Retry(max_attempts=1))
    async def deaf(number: int) -> None:
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    world = _open(open_world, deaf, deadline_margin="100ms")
    run_id = world.runlane.run_now(deaf, 1).run.run_id
    go_on.set()
    until(lambda: world.get(run_id).status is not Status.RUNNING)
    assert world.get(run_id).status is Status.FAILED, world.runlane.runs.events(run_id)


def test_closing_the_runtime_lets_the_lease_of_an_attempt_left_behind_expire(
    open_world: OpenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runlane.services.heartbeat import Heartbeat

    go_on = threading.Event()
    beats: list[Heartbeat] = []
    monkeypatch.setattr(Heartbeat, "beat", lambda beating: beats.append(beating))

    @task("held", max_attempt_duration="100ms")
    def held(number: int) -> None:
        go_on.wait(60)

    world = _open(open_world, held, deadline_margin="100ms", lease_duration="1s")
    run_id = world.runlane.run_now(held, 1).run.run_id
    until(lambda: bool(beats))
    world.runlane.close()
    time.sleep(0.4)
    beats.clear()
    time.sleep(0.8)
    assert not beats
    go_on.set()
    until(lambda: world.get(run_id).status is not Status.RUNNING)
    world.runlane.disconnect()  # The attempt has opened a connection to write its end.
