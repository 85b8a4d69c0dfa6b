"""In Lambda a process is frozen after its invocation: an attempt that ignores its deadline must not thaw beside its retry."""

from __future__ import annotations

import pytest

from runlane.domain.run import Status
from tests.acceptance.failures.conftest import OpenStage
from tests.acceptance.failures.tasks import deaf, noop
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.sqs]


def test_its_process_frees_the_slot_in_its_last_transaction_and_exits_before_the_retry_starts(open_stage: OpenStage) -> None:
    stage = open_stage(lease="60s")
    workers = [stage.spawn("--function-timeout", "2", AWS_LAMBDA_FUNCTION_NAME="worker") for _ in range(2)]
    run_id = stage.runlane.trigger(deaf, 1).run.run_id
    others = [result.run.run_id for result in stage.runlane.trigger_many(noop, range(5))]
    until(lambda: any(worker.returncode is not None for worker in workers))
    until(lambda: stage.get(run_id).status is Status.SUCCEEDED)
    dead = next(worker for worker in workers if worker.returncode is not None)
    first, second = stage.notes("start")
    assert (dead.returncode, dead.pid) == (1, first.pid)
    assert second.pid != first.pid
    assert max(note.at for note in stage.notes("alive")) < second.at
    attempts = stage.runlane.runs.attempts(run_id)
    assert [one.failure and one.failure.code for one in attempts] == ["timed_out", None]
    assert "run.lease_expired" not in stage.events(run_id), "the slot was freed by its own process"
    until(lambda: {stage.get(other).status for other in others} == {Status.SUCCEEDED})


def test_a_resident_worker_keeps_the_slot_while_the_thread_lives(open_stage: OpenStage) -> None:
    stage = open_stage(lease="1s")
    worker = stage.spawn("--function-timeout", "1")
    run_id = stage.runlane.trigger(deaf, 1).run.run_id
    until(lambda: bool(stage.notes("alive")))
    begun = stage.notes("start")[0].at
    # Three leases long: whatever ticks and further deliveries do, the heartbeat of the living thread keeps them off.
    stage.ticking_until(lambda: stage.notes("alive")[-1].at > begun + 3)
    assert (worker.returncode, stage.get(run_id).status, len(stage.notes("start"))) == (None, Status.RUNNING, 1)
    worker.kill()
    stage.spawn()
    stage.ticking_until_status(Status.SUCCEEDED, run_id)
    assert max(note.at for note in stage.notes("alive")) < stage.notes("start")[1].at
