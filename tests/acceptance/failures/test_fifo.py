"""FIFO queues under duplicates, failures and killed workers, seen from the history of the runs."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import pytest

from runlane.bootstrap import environment_lane
from runlane.domain.event import EventType
from runlane.domain.ids import RunId
from runlane.domain.run import Status
from runlane.ports.stores import Wakeup
from runlane.settings import read_settings
from tests.acceptance.failures.conftest import OpenStage
from tests.acceptance.failures.stage import Stage
from tests.acceptance.failures.tasks import entry, main, ordered, single
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.sqs]

ENDS = {EventType.SUCCEEDED, EventType.RETRY_SCHEDULED, EventType.LEASE_EXPIRED, EventType.RESCHEDULED, EventType.FAILED}
Span = tuple[datetime, datetime, RunId]


def spans(stage: Stage, run_ids: list[RunId]) -> list[Span]:
    """Every attempt of these runs, from claim to end, in the order of the claims."""
    found: list[Span] = []
    for run_id in run_ids:
        claimed: datetime | None = None
        for event in stage.runlane.runs.events(run_id):
            if event.type is EventType.CLAIMED:
                claimed = event.at
            elif event.type in ENDS and claimed is not None:
                found.append((claimed, event.at, run_id))
                claimed = None
    return sorted(found)


def publish_again(stage: Stage, run_ids: list[RunId], group: str) -> None:
    lane = environment_lane([main, single, ordered], read_settings(stage.variables))
    results = lane.transport.publish([Wakeup(run_id, "ordered", concurrency_key=group) for run_id in run_ids])
    assert all(result.published for result in results)
    lane.transport.close()


@pytest.mark.parametrize("worker", ["function", pytest.param("consumer", marks=pytest.mark.thorough)])
def test_each_group_keeps_the_order_of_its_deliveries_and_no_two_attempts_of_it_overlap(worker: str, open_fifo_stage: OpenStage) -> None:
    stage = open_fifo_stage(lease="1s")
    groups = {group: [group * 100 + number for number in range(8)] for group in range(3)}
    mixed = [numbers[place] for place in range(8) for numbers in groups.values()]
    runs = {number: result.run.run_id for number, result in zip(mixed, stage.runlane.trigger_many(entry, mixed), strict=True)}
    for group, numbers in groups.items():
        publish_again(stage, [runs[number] for number in numbers], str(group))

    def all_done() -> bool:
        while sum(one.returncode is None for one in stage.workers) < 2:
            stage.spawn() if worker == "function" else stage.spawn_resident("sqs", "--grace", "2s")
        return {stage.get(run_id).status for run_id in runs.values()} == {Status.SUCCEEDED}

    stage.ticking_until(all_done)
    assert sum(one.returncode is not None for one in stage.workers) == 1
    for numbers in groups.values():
        mine = [runs[number] for number in numbers]
        attempts = spans(stage, mine)
        assert all(ended <= claimed for (_, ended, _), (claimed, _, _) in pairwise(attempts))
        assert list(dict.fromkeys(run_id for _, _, run_id in attempts)) == mine, "what failed yields its place, nothing else does"
    assert all(stage.get(runs[number]).attempt > 1 for number in (3, 103, 5))


def test_a_group_that_waits_does_not_hold_others(open_fifo_stage: OpenStage) -> None:
    stage = open_fifo_stage(lease="60s")
    waiting = [result.run.run_id for result in stage.runlane.trigger_many(entry, [50, 0])]
    stage.spawn("--batch-size", "1")
    until(lambda: bool(stage.notes("start")))
    others = [result.run.run_id for result in stage.runlane.trigger_many(entry, [100, 200, 101, 201, 103])]
    until(lambda: {stage.get(run_id).status for run_id in others} == {Status.SUCCEEDED})
    assert [stage.get(run_id).status for run_id in waiting] == [Status.RUNNING, Status.QUEUED]
    stage.open_gate(50, 1)
    until(lambda: {stage.get(run_id).status for run_id in waiting} == {Status.SUCCEEDED})
    (_, ended, _), (claimed, _, _) = spans(stage, waiting)
    assert ended <= claimed
