from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest

from runlane.adapters.local.postgres import LocalPostgres
from runlane.domain.errors import UnavailableError
from runlane.domain.run import Status
from runlane.domain.task import Task
from tests.acceptance.failures.conftest import OpenStage
from tests.acceptance.failures.stage import Stage
from tests.acceptance.failures.tasks import noop
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.sqs, pytest.mark.slow]


@pytest.fixture(params=[18, 15])
def mortal(request: pytest.FixtureRequest) -> Iterator[LocalPostgres]:
    with LocalPostgres(major=request.param, durable=False, settings={"synchronous_commit": "on"}) as running:
        yield running


class Producer(threading.Thread):
    """Triggers one run after the other; `acknowledged` are those that `trigger` returned. Each try has a number of its own."""

    def __init__(self, stage: Stage, task: Task[int] = noop) -> None:
        super().__init__()
        self._task = task
        self._numbers = count(1)
        self.acknowledged: list[str] = []
        self.refused = 0
        self.stopping = threading.Event()
        self._stage = stage

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.acknowledged.append(self._stage.runlane.trigger(self._task, next(self._numbers)).run.run_id)
            except UnavailableError:
                self.refused += 1
                self.stopping.wait(0.05)


def test_a_crash_under_load_loses_no_acknowledged_run_and_work_resumes(mortal: LocalPostgres, open_stage: OpenStage) -> None:
    stage = open_stage(on=mortal, lease="1s")
    worker = stage.spawn("--maintenance", "functions.maintenance.app:handler", "--tick-every", "0.5")
    producer = Producer(stage)
    producer.start()
    try:
        until(lambda: len(producer.acknowledged) > 100 and any_ended(stage))
        mortal.kill()
        until(lambda: producer.refused > 0)
        before = len(producer.acknowledged)
        mortal.start()
        until(lambda: len(producer.acknowledged) > before + 50)
    finally:
        producer.stopping.set()
        producer.join(60)
    until(lambda: succeeded(stage) >= set(producer.acknowledged))
    assert worker.returncode is None


def any_ended(stage: Stage) -> bool:
    return bool(stage.value("SELECT EXISTS (SELECT 1 FROM runlane.outcome)"))


def succeeded(stage: Stage) -> set[str]:
    found = stage.value("SELECT array_agg(run_id::text) FROM runlane.outcome WHERE status = %s", Status.SUCCEEDED.value)
    return set(found or ())
