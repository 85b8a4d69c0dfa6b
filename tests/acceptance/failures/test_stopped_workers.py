"""SIGTERM: what is under way ends or is handed back within the grace, and nothing is left under a lease."""

from __future__ import annotations

import json
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from runlane.adapters.local.ports import free_port
from runlane.domain.run import Status
from tests.acceptance.failures.conftest import OpenStage
from tests.acceptance.failures.stage import Stage
from tests.acceptance.failures.tasks import attentive, held, noop
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.sqs]

MODES = pytest.mark.parametrize("mode", ["poll", "sqs"])


def leases(stage: Stage) -> int:
    return int(stage.value("SELECT count(*) FROM runlane.lease"))


@MODES
def test_an_attempt_that_ends_within_the_grace_is_waited_for_and_nothing_else_starts(mode: str, open_stage: OpenStage) -> None:
    stage = open_stage(lease="60s")
    worker = stage.spawn_resident(mode, "--grace", "9s", "--concurrency", "1")
    ending, waiting = (stage.runlane.trigger(attentive, number).run.run_id for number in (1, 2))
    until(lambda: bool(stage.notes("start")))
    assert worker.stop(0.3) is None
    stage.open_gate(stage.notes("start")[0].number, 1)
    assert worker.wait(60) == 0
    assert sorted(stage.get(run_id).status for run_id in (ending, waiting)) == [Status.QUEUED, Status.SUCCEEDED]
    assert (leases(stage), len(stage.notes("start"))) == (0, 1)
    assert '"left": 0' not in stage.log, "a table for people without --json"


@MODES
def test_an_attempt_that_outlives_the_grace_is_released_whether_it_listens_or_not(mode: str, open_stage: OpenStage) -> None:
    stage = open_stage(lease="60s")
    worker = stage.spawn_resident(mode, "--grace", "1s", "--json")
    runs = [stage.runlane.trigger(attentive, 1).run.run_id, stage.runlane.trigger(held, 2).run.run_id]
    until(lambda: len(stage.notes("start")) == 2)
    began = time.monotonic()
    assert worker.stop(60) == 0
    assert time.monotonic() - began < 30, "its lease is 60 s"
    assert leases(stage) == 0
    assert {stage.get(run_id).status for run_id in runs} == {Status.RELEASED}
    assert {stage.get(run_id).failures for run_id in runs} == {0}
    # A thread that was left to itself may say something after the report.
    assert json.JSONDecoder().raw_decode(stage.log, stage.log.index("{\n"))[0] == {
        "mode": mode,
        "queues": ["main", "single", "ordered"],
        "attempts": {"released": 2},
        "left": 0,
    }
    for number in (1, 2):
        stage.open_gate(number, 2)
    stage.spawn_resident("poll")
    until(lambda: {stage.get(run_id).status for run_id in runs} == {Status.SUCCEEDED})


@pytest.mark.parametrize("variables", [{}, {"RUNLANE_TRANSPORT": "none", "RUNLANE_QUEUE_URL": ""}], ids=["sqs", "no transport"])
def test_a_drained_queue_holds_nothing_that_is_due_and_the_command_ends_by_itself(variables: dict[str, str], open_stage: OpenStage) -> None:
    stage = open_stage(**variables)
    runs = [result.run.run_id for result in stage.runlane.trigger_many(noop, range(40), dispatch="deferred")]
    runs.append(stage.runlane.trigger(noop, 40).run.run_id)
    runs += [result.run.run_id for result in stage.runlane.trigger_many(noop, range(5), delay="10ms")]
    later = stage.runlane.trigger(noop, 1, delay="1h").run.run_id
    until(lambda: stage.value("SELECT count(*) FROM runlane.timer WHERE due_at <= clock_timestamp()") == 5)
    assert stage.spawn_resident("drain").wait(60) == 0
    assert {stage.get(run_id).status for run_id in runs} == {Status.SUCCEEDED}
    assert stage.get(later).status is Status.SCHEDULED


def test_a_drain_that_reaches_no_database_fails(open_stage: OpenStage) -> None:
    stage = open_stage()
    assert stage.spawn_resident("drain", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none").wait(60) == 1
    assert "error: the database cannot be used now" in stage.log


def test_the_health_endpoint_tells_liveness_readiness_and_the_attempts_under_way(open_stage: OpenStage) -> None:
    stage, port = open_stage(lease="60s"), free_port()
    worker = stage.spawn_resident("sqs", "--health-port", str(port), "--grace", "4s")
    run_id = stage.runlane.trigger(held, 1).run.run_id
    until(lambda: bool(stage.notes("start")))
    until(lambda: asked(port, "/ready")[0] == 200)
    status, facts = asked(port, "/live")
    assert (status, facts["mode"], facts["under_way"], facts["is_stopping"]) == (200, "sqs", 1, False)
    assert facts["storage_age"] < 60
    assert asked(port, "/else")[0] == 404
    assert worker.stop(0.3) is None
    assert (asked(port, "/live")[0], asked(port, "/ready")[0]) == (200, 503)
    stage.open_gate(1, 1)
    assert worker.wait(60) == 0
    assert stage.get(run_id).status is Status.SUCCEEDED


def asked(port: int, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}
