"""A worker off Lambda meets the outages of what it stands on."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.local.sqs import LocalSqs
from runlane.domain.run import Status
from tests.acceptance.failures.conftest import OpenStage
from tests.acceptance.failures.outage import Door
from tests.acceptance.failures.stage import Stage
from tests.acceptance.failures.tasks import held, noop, noted
from tests.acceptance.failures.test_postgres_crash import Producer, any_ended, succeeded
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.sqs, pytest.mark.slow, pytest.mark.thorough]

POSTGRES_OUTAGE = 2.0
"""Seconds; more than what a worker on Lambda would wait with an outcome."""
SQS_OUTAGE = float(os.environ.get("SQS_OUTAGE_SECONDS", "2"))


@pytest.fixture
def door(sqs: LocalSqs) -> Iterator[Door]:
    with Door(sqs.endpoint_url) as opened:
        yield opened


@pytest.fixture
def mortal() -> Iterator[LocalPostgres]:
    with LocalPostgres(durable=False, settings={"synchronous_commit": "on"}) as running:
        yield running


def ends_once(stage: Stage, *run_ids: str) -> bool:
    """Whether every run succeeded, each at its first attempt."""
    counts = stage.value(
        "SELECT count(*) FROM runlane.outcome WHERE status = 'succeeded' AND attempt = 1 AND run_id = ANY (%s::uuid[])", list(run_ids)
    )
    return bool(counts == len(run_ids))


def test_a_consumer_survives_an_outage_of_sqs_and_every_run_is_executed_once(open_stage: OpenStage, door: Door) -> None:
    stage = open_stage(AWS_ENDPOINT_URL=door.url, lease="5s")
    worker = stage.spawn_resident("sqs", "--grace", "2s")
    before = [result.run.run_id for result in stage.runlane.trigger_many(noop, range(30))]
    until(lambda: ends_once(stage, *before))
    under_way = stage.runlane.trigger(held, 1).run.run_id
    until(lambda: bool(stage.notes("start")))
    door.shut()
    ends_at = time.monotonic() + SQS_OUTAGE
    during = [result.run.run_id for result in stage.runlane.trigger_many(noop, range(10))]
    stage.open_gate(1, 1)
    until(lambda: stage.get(under_way).status is Status.SUCCEEDED)
    time.sleep(max(0.0, ends_at - time.monotonic()))
    door.open()
    stage.ticking_until(lambda: ends_once(stage, *before, *during, under_way))
    assert {stage.get(run_id).attempt for run_id in (*during, under_way)} == {1}
    assert worker.stop(10) == 0
    assert stage.value("SELECT count(*) FROM runlane.lease") == 0


def starts(stage: Stage) -> Counter[int]:
    return Counter(note.number for note in stage.notes("start"))


def ended(stage: Stage) -> set[int]:
    return {note.number for note in stage.notes("end")}


@pytest.mark.parametrize("mode", ["sqs", "poll"])
def test_a_restart_of_postgres_under_load_loses_and_doubles_no_run(mode: str, mortal: LocalPostgres, open_stage: OpenStage) -> None:
    stage = open_stage(on=mortal, lease="8s")
    worker = stage.spawn_resident(mode, "--grace", "2s")
    stage.runlane.trigger(held, 0)
    producer = Producer(stage, noted)
    producer.start()
    try:
        until(lambda: len(producer.acknowledged) > 50 and any_ended(stage) and bool(starts(stage)[0]))
        mortal.kill()
        until(lambda: producer.refused > 0)
        before = len(producer.acknowledged)
        stage.open_gate(0, 1)
        until(lambda: 0 in ended(stage))
        time.sleep(POSTGRES_OUTAGE)
        mortal.start()
        until(lambda: len(producer.acknowledged) > before + 30)
    finally:
        producer.stopping.set()
        producer.join(60)
    stage.ticking_until(lambda: succeeded(stage) >= set(producer.acknowledged))
    until(lambda: stage.value("SELECT count(*) FROM runlane.lease") == 0)
    assert {number: count for number, count in starts(stage).items() if count > 1 and number in ended(stage)} == {}
    assert worker.stop(10) == 0
    assert stage.value("SELECT count(*) FROM runlane.lease") == 0
