from __future__ import annotations

import pytest

from runlane.domain.run import Status
from tests.acceptance.failures.conftest import OpenStage
from tests.acceptance.failures.tasks import noop
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.sqs]


def test_two_processes_that_tick_at_once_do_everything_once(open_stage: OpenStage) -> None:
    stage = open_stage()
    runs = [result.run.run_id for result in stage.runlane.trigger_many(noop, range(150), dispatch="deferred")]
    runs += [result.run.run_id for result in stage.runlane.trigger_many(noop, range(150), delay="1s")]
    for _ in range(2):
        stage.spawn_ticker(0.05)
    stage.spawn()
    until(lambda: stage.value("SELECT count(*) FROM runlane.outcome") == len(runs))
    assert {stage.value("SELECT count(*) FROM runlane.event WHERE type = %s", f"run.{name}") for name in ("claimed", "succeeded")} == {300}
    assert {stage.get(run_id).status for run_id in runs[::50]} == {Status.SUCCEEDED}
    assert all(worker.returncode is None for worker in stage.workers)
