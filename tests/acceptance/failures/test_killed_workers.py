"""A worker process dies, or is frozen, in mid-attempt."""

from __future__ import annotations

import signal

import pytest

from runlane.domain.event import EventType
from runlane.domain.run import Status
from tests.acceptance.failures.conftest import OpenStage
from tests.acceptance.failures.tasks import held, noop, poison
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.sqs]


def test_a_killed_worker_s_run_is_recovered_once_and_its_attempt_counted(open_stage: OpenStage) -> None:
    stage = open_stage(lease="1s")
    first = stage.spawn()
    run_id = stage.runlane.trigger(held, 1).run.run_id
    behind = stage.runlane.trigger(held, 2).run.run_id
    until(lambda: bool(stage.notes("start")))
    first.kill()
    stage.open_gate(1, 2)
    stage.open_gate(2, 1)
    stage.spawn()
    stage.ticking_until_status(Status.SUCCEEDED, run_id, behind)
    record = stage.get(run_id)
    assert (record.attempt, record.failures, record.result) == (2, 1, "attempt 2")
    assert [one.outcome for one in stage.runlane.runs.attempts(run_id)] == [EventType.LEASE_EXPIRED, EventType.SUCCEEDED]
    assert stage.events(run_id).count("run.lease_expired") == 1
    assert stage.get(behind).attempt == 1
    assert stage.value("SELECT max(occupied) FROM runlane.event WHERE slot_seq IS NOT NULL") == 1


def test_a_frozen_worker_s_late_result_is_refused_and_the_refusal_recorded(open_stage: OpenStage) -> None:
    stage = open_stage(lease="1s")
    frozen = stage.spawn()
    run_id = stage.runlane.trigger(held, 1).run.run_id
    until(lambda: bool(stage.notes("start")))
    frozen.send_signal(signal.SIGSTOP)
    stage.open_gate(1, 2)
    stage.spawn()
    stage.ticking_until_status(Status.SUCCEEDED, run_id)
    stage.open_gate(1, 1)
    frozen.send_signal(signal.SIGCONT)
    until(lambda: "run.result_refused" in stage.events(run_id))
    assert {note.attempt for note in stage.notes("end")} == {1, 2}, "both handlers returned"
    record = stage.get(run_id)
    assert (record.status, record.attempt, record.result) == (Status.SUCCEEDED, 2, "attempt 2")
    assert stage.events(run_id).count("run.succeeded") == 1
    assert frozen.returncode is None, "a refused result is no reason to die"
    other = stage.runlane.trigger(noop, 1).run.run_id
    until(lambda: stage.get(other).status is Status.SUCCEEDED)


def test_a_late_result_is_refused_while_the_retry_runs(open_stage: OpenStage) -> None:
    stage = open_stage(lease="1s")
    frozen = stage.spawn()
    run_id = stage.runlane.trigger(held, 1).run.run_id
    until(lambda: bool(stage.notes("start")))
    frozen.send_signal(signal.SIGSTOP)
    stage.spawn()
    stage.ticking_until(lambda: len(stage.notes("start")) == 2)
    stage.open_gate(1, 1)
    frozen.send_signal(signal.SIGCONT)
    until(lambda: "run.result_refused" in stage.events(run_id))
    assert stage.get(run_id).status is Status.RUNNING
    stage.open_gate(1, 2)
    stage.ticking_until_status(Status.SUCCEEDED, run_id)
    assert stage.get(run_id).result == "attempt 2"


def test_a_run_that_kills_its_worker_ends_failed_and_its_neighbours_do_not(open_stage: OpenStage) -> None:
    stage = open_stage(lease="1s")
    run_id = stage.runlane.trigger(poison, 1).run.run_id
    neighbours = [result.run.run_id for result in stage.runlane.trigger_many(noop, range(5))]
    workers = [stage.spawn("--concurrency", "1") for _ in range(3)]
    stage.ticking_until_status(Status.FAILED, run_id)
    record = stage.get(run_id)
    assert (record.attempt, record.failures) == (2, 2)
    assert record.failure is not None
    assert record.failure.code == "lease_expired"
    stage.ticking_until_status(Status.SUCCEEDED, *neighbours)
    dead = [worker.returncode for worker in workers if worker.returncode is not None]
    assert (dead, len(stage.notes("start"))) == ([-signal.SIGKILL] * 2, 2)
