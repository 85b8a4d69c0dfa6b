"""Schedules through the real handlers: from the code to the run that starts at its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from runlane.domain.errors import ContractError, NotFoundError
from runlane.domain.queue import Queue
from runlane.domain.records import ScheduleState
from runlane.domain.run import Source, Status
from runlane.domain.schedule import Schedule
from runlane.domain.task import Task, task
from runlane.services.context import Context
from tests.functions.conftest import OpenWorld
from tests.functions.world import World
from tests.postgres.test_schedules import quiet

side = Queue("side")
main = Queue("main", default=True)


class Sync(BaseModel):
    customer: str


def syncing(*schedules: Schedule, **options: Any) -> Task[Sync, str]:
    @task("sync", schedules=schedules, **options)
    def sync(payload: Sync, ctx: Context) -> str:
        return payload.customer

    return sync


def schedule(id: str = "nightly", **given: Any) -> Schedule:
    every = quiet(datetime.now(UTC)).every
    return Schedule(id, **{"every": every, "payload": Sync(customer="acme"), **given})


@pytest.fixture
def world(open_world: OpenWorld) -> World:
    return open_world([syncing(schedule(queue=side))], queues=[main, side])


def test_a_schedule_becomes_runs_of_its_task_with_its_payload_on_its_queue(world: World) -> None:
    assert world.runlane.schedules.put_in_force(actor="test") == {"nightly": "created"}
    hints = list(world.wire.delayed)
    assert [hint.queue for hint in hints] == ["side"] * 2
    first = hints[0].run_id
    assert world.get(first).status is Status.SCHEDULED
    assert world.tick()["counts"]["materialize_schedules"] == 0
    world.make_due(first)
    run = world.get(first)
    assert (run.status, run.result, run.source, run.queue) == (Status.SUCCEEDED, "acme", Source.SCHEDULE, "side")
    assert [one.run_id for one in world.runlane.runs.list(source="schedule", status="succeeded").data] == [first]


def test_a_tick_makes_up_for_an_outage(world: World) -> None:
    world.runlane.schedules.put_in_force()
    world.lane.connection.execute("UPDATE runlane.schedule SET decided_until = now() - interval '1 day', look_at = now()")
    assert world.tick()["counts"]["materialize_schedules"] == 1
    world.deliver_sent()
    assert len(world.runlane.runs.list(status="succeeded").data) == 1


def test_what_operators_see_and_do(world: World) -> None:
    schedules = world.runlane.schedules
    schedules.put_in_force()
    (record,) = schedules.list()
    assert record == schedules.get("nightly")
    assert (record.state, record.task, record.queue, record.payload) == (ScheduleState.ACTIVE, "sync", "side", {"customer": "acme"})
    fires = schedules.next("nightly", 3)
    assert record.next_fire_at == fires[0].fire_at == fires[0].due_at
    assert fires[2].fire_at - fires[1].fire_at == record.every
    paused = schedules.pause("nightly", actor="ada")
    assert (paused.cancelled, paused.schedule) == (2, schedules.get("nightly"))
    assert (paused.schedule.state, paused.schedule.next_fire_at) == (ScheduleState.PAUSED, None)
    assert schedules.pause("nightly").cancelled == 0
    assert schedules.next("nightly", 1) == fires[:1]
    made = schedules.trigger("nightly", actor="ada")
    world.deliver_sent()
    assert world.get(made.run.run_id).status is Status.SUCCEEDED
    world.wire.delayed.clear()
    assert schedules.resume("nightly").state is ScheduleState.ACTIVE
    assert len(world.wire.delayed) == 2


def test_an_unknown_schedule_is_named_with_what_it_may_have_been(world: World) -> None:
    world.runlane.schedules.put_in_force()
    schedules = world.runlane.schedules
    for ask in (schedules.get, schedules.pause, schedules.resume, schedules.trigger):
        with pytest.raises(NotFoundError, match="did you mean 'nightly'") as raised:
            ask("nigthly")
        assert raised.value.code == "schedule_not_found"
    for count in (0, 1001, True, "2"):
        with pytest.raises(ContractError, match="count"):
            world.runlane.schedules.next("nightly", count)  # type: ignore[arg-type]


def test_every_state_is_told(open_world: OpenWorld) -> None:
    over = datetime.now(UTC) - timedelta(days=1)
    world = open_world([syncing(schedule("off", enabled=False), schedule("over", every=None, run_at=over))])
    world.runlane.schedules.put_in_force()
    world.tick()
    assert [record.state for record in world.runlane.schedules.list()] == [ScheduleState.DISABLED, ScheduleState.ENDED]
    assert world.count("run") == 0


def test_a_schedule_has_no_idempotency_key_since_its_fires_are_different_occasions(open_world: OpenWorld) -> None:
    world = open_world([syncing(schedule(), idempotency_key=lambda payload: payload.customer, tenant="shop", priority=7)])
    world.runlane.schedules.put_in_force()
    runs = [world.get(hint.run_id) for hint in world.wire.delayed]
    assert [(run.idempotency_key, run.tenant, run.priority) for run in runs] == [(None, "shop", 7)] * 2


def test_a_fire_needs_no_code_and_waits_for_a_worker_that_knows_its_task(world: World, open_world: OpenWorld) -> None:
    world.runlane.schedules.put_in_force()
    first = world.wire.delayed[0].run_id
    older = open_world([], queues=[main, side])
    assert older.runlane.start() == ()
    assert older.tick()["failed"] == []
    older.make_due(first)
    assert older.get(first).status.is_waiting
    newer = open_world([syncing(schedule(queue=side))], queues=[main, side])
    newer.make_due(first)
    assert newer.get(first).status is Status.SUCCEEDED


def test_a_runtime_whose_code_differs_says_so_and_runs_on(world: World, open_world: OpenWorld) -> None:
    world.runlane.schedules.put_in_force()
    other = open_world([syncing(schedule("weekly"))], queues=[main, side])
    told = other.runlane.rebind(other.runlane.lane) and other.runlane.start()
    assert [difference.split("'")[1] for difference in told if difference.startswith("schedule")] == ["weekly", "nightly"]
    assert [record.schedule_id for record in other.runlane.schedules.list()] == ["nightly"]
