from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import UnavailableError
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from runlane.domain.task import task
from tests.functions.conftest import OpenWorld

PHASES = [
    "due_timers",
    "fold_recorded",
    "expire_dispatches",
    "expired_leases",
    "expire_deadlines",
    "dispatch_queues",
    "claim_unpublished",
    "ensure_partitions",
    "retain",
]
REPORTED = {"expired_leases": "recover_leases", "claim_unpublished": "publish_unpublished"}


@task("noop")
def noop(number: int) -> int:
    return number


def _broken(*_: Any, **__: Any) -> Any:
    raise UnavailableError("storage_unavailable", "gone")


@pytest.mark.parametrize("phase", PHASES)
def test_a_failing_phase_stops_no_other(dsn: str, open_world: OpenWorld, phase: str) -> None:
    storage = PostgresStorage(dsn)
    setattr(storage.maintenance, phase, _broken)
    world = open_world([noop], storage=storage)
    due, recorded, lost, expired = _damage(world)
    report = world.tick()
    assert report["failed"] == [REPORTED.get(phase, phase)]
    counts = {name: count for name, count in report["counts"].items() if count}
    wanted = {"due_timers", "fold_recorded", "recover_leases", "publish_unpublished"} - {REPORTED.get(phase, phase)}
    assert wanted <= counts.keys()
    assert report["unfinished"] == []
    healthy = open_world([noop])
    for _ in range(3):
        healthy.lane.age_publication(due, recorded, lost, expired)
        healthy.tick()
        healthy.deliver_sent()
        if healthy.count("timer"):
            healthy.lane.age_timer(expired)
    assert healthy.statuses([due, recorded, lost, expired]) == {Status.SUCCEEDED}


def test_a_tick_without_time_does_one_step_of_each_phase_and_says_what_is_left(open_world: OpenWorld) -> None:
    world = open_world([noop])
    world.runlane.trigger_many(noop, range(1200), dispatch="deferred")
    report = world.tick(seconds=1)
    assert set(report["counts"]) == {"materialize_schedules", *(REPORTED.get(phase, phase) for phase in PHASES)}
    assert report["failed"] == []
    world.tick()
    world.tick()
    world.deliver_sent()
    assert world.count("outcome") == 1200


def test_a_tick_sends_hints_ahead_and_what_is_due_starts(open_world: OpenWorld) -> None:
    world = open_world([noop])
    soon = world.runlane.trigger(noop, 1, delay="20m").run.run_id
    world.wire.delayed.clear()
    world.tick()
    assert world.wire.delayed == [], "nearer than the look-ahead only"
    world.lane._write("UPDATE runlane.timer SET due_at = clock_timestamp() + interval '2 minutes' WHERE run_id = %s", soon)
    world.tick()
    (hint,) = world.wire.delayed
    assert timedelta(seconds=110) < hint.delay <= timedelta(minutes=2)
    world.tick()
    assert len(world.wire.delayed) == 1, "one hint is enough"
    world.make_due(soon)
    assert world.get(soon).status is Status.SUCCEEDED


def test_an_idle_tick_finds_nothing(open_world: OpenWorld) -> None:
    world = open_world([noop], [Queue("main", default=True, concurrency_limit=1)])
    world.runlane.trigger_many(noop, range(3))
    world.deliver_sent()
    world.tick()
    assert set(world.tick()["counts"].values()) == {0}


def _damage(world: Any) -> tuple[Any, ...]:
    """One run for each of the phases that repair: due, recorded only, its wakeup lost, its worker dead."""
    due = world.runlane.trigger(noop, 1, delay="1h").run.run_id
    recorded = world.runlane.trigger(noop, 2, dispatch="deferred").run.run_id
    lost, expired = (world.runlane.trigger(noop, number).run.run_id for number in (3, 4))
    world.wire.take()
    world.lane.claim_one(expired)
    world.lane.age_timer(due)
    world.lane.age_lease(expired)
    world.lane._write("UPDATE runlane.dispatch SET publish_status = 'claimed'")
    world.lane.age_publication(lost)
    return due, recorded, lost, expired
