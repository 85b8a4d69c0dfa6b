"""Moves on runs by people, through the runtime."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from runlane import (
    BulkReport,
    ConfigurationError,
    ConflictError,
    ContractError,
    NotFoundError,
    PayloadError,
    Queue,
    Retry,
    Source,
    Status,
    TriggerOutcome,
    task,
)
from runlane.domain.ids import RunId
from tests.functions.conftest import OpenWorld
from tests.functions.world import World

pytestmark = pytest.mark.postgres
main, other = Queue("main", default=True), Queue("other", concurrency_limit=1)
UNKNOWN = RunId("01900000-0000-7000-8000-000000000000")


class Job(BaseModel):
    number: int


class Mended(BaseModel):
    number: int
    wanted: str


def _fail(job: Job) -> None:
    raise ValueError("no")


failing = task(
    "fail", retry=Retry(max_attempts=1), idempotency_key=lambda job: f"i{job.number}", singleton_key=lambda job: f"s{job.number}"
)(_fail)


@task("fine")
def fine(job: Job) -> int:
    return job.number


@pytest.fixture
def world(open_world: OpenWorld) -> World:
    return open_world([failing, fine], [main, other])


def failed(world: World, *numbers: int, **options: Any) -> list[RunId]:
    runs = [world.runlane.trigger(failing, Job(number=number), **options).run.run_id for number in numbers]
    world.deliver_sent()
    return runs


def test_a_retry_is_like_its_source_and_takes_its_singleton_but_no_idempotency_key(world: World) -> None:
    (run_id,) = failed(world, 1, queue=other, tenant="t", concurrency_key="k", priority=9, meta={"a": 1}, actor="ann")
    result = world.runlane.runs.retry(run_id, actor="bob", reason="mended")
    child = world.get(result.run.run_id)
    assert (result.outcome, result.run.queue, child.source, child.source_run_id) == (
        TriggerOutcome.CREATED,
        "other",
        Source.MANUAL_RETRY,
        run_id,
    )
    assert (child.queue, child.tenant, child.concurrency_key, child.priority, child.meta) == ("other", "t", "k", 9, {"a": 1})
    assert (child.singleton_key, child.idempotency_key, child.actor, child.payload) == ("s1", None, "bob", {"number": 1})
    assert [wakeup.run_id for wakeup in world.wire.sent] == [child.run_id]
    with pytest.raises(ConflictError) as again:
        world.runlane.runs.retry(run_id)
    assert (again.value.code, again.value.meta["child_run_id"], again.value.retryable) == ("already_retried", child.run_id, False)
    rerun = world.runlane.runs.rerun(run_id)
    assert (rerun.outcome, rerun.run.run_id) == (TriggerOutcome.SINGLETON_ACTIVE, child.run_id)


def test_what_cannot_be_made_again_is_refused_by_name(world: World, open_world: OpenWorld) -> None:
    (run_id,) = failed(world, 1)
    waiting = world.runlane.trigger(fine, Job(number=1)).run.run_id
    runs = world.runlane.runs
    with pytest.raises(NotFoundError):
        runs.retry(UNKNOWN)
    for move, code in ((runs.retry, "run_not_failed"), (runs.rerun, "run_not_ended")):
        with pytest.raises(ConflictError) as refused:
            move(waiting)
        assert refused.value.code == code
    changed = open_world([task("fail")(_mended)], [main, other])
    with pytest.raises(PayloadError) as misfit:
        changed.runlane.runs.retry(run_id)
    assert misfit.value.meta["fields"][0]["path"] == "wanted"
    with pytest.raises(ConfigurationError) as gone:
        open_world([fine], [main, other]).runlane.runs.rerun(run_id)
    assert gone.value.code == "task_unregistered"
    assert changed.count("run") == 2


def _mended(job: Mended) -> None:
    return None


def test_many_are_retried_batch_by_batch_with_a_report_of_each(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.services.operate.bulk.BATCH", 2)
    runs = failed(world, *range(5))
    world.runlane.runs.retry(runs[0])
    reports = list[BulkReport]()
    whole = world.runlane.runs.retry_many(task=failing, dry_run=True)
    assert (whole.matched, whole.done, whole.refused) == (5, 4, ((runs[0], "already_retried"),))
    done = world.runlane.runs.retry_many(task="fail", actor="ann", on_progress=reports.append)
    assert [(report.matched, report.done) for report in reports] == [(2, 2), (4, 4), (5, 4)]
    assert reports[-1] == done == BulkReport(5, 4, ((runs[0], "already_retried"),))
    assert world.runlane.runs.retry_many(task=failing).done == 0
    assert {run.source_run_id for run in world.runlane.runs.list(source="manual_retry").data} == set(runs)


def test_an_interrupted_move_goes_on_where_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.services.operate.bulk.BATCH", 2)
    for number in range(5):
        world.runlane.trigger(fine, Job(number=number), tenant="t")
    world.deliver_sent()
    seen = list[BulkReport]()

    def interrupt(report: BulkReport) -> None:
        seen.append(report)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.runlane.runs.rerun_many(tenant="t", on_progress=interrupt)
    rest = world.runlane.runs.rerun_many(tenant="t", cursor=seen[0].next_cursor)
    assert (seen[0].done, rest.done, rest.next_cursor) == (2, 3, None)
    reruns = world.runlane.runs.list(source=Source.RERUN).data
    assert len({run.source_run_id for run in reruns}) == len(reruns) == 5


def test_a_limit_ends_early_and_says_where_to_go_on(world: World) -> None:
    for number in range(4):
        world.runlane.trigger(fine, Job(number=number))
    first = world.runlane.runs.cancel_many(task=fine, limit=3)
    assert (first.matched, first.done) == (3, 3)
    last = world.runlane.runs.cancel_many(task=fine, limit=3, cursor=first.next_cursor)
    assert (last.matched, last.done, last.next_cursor) == (1, 1, None)


def test_many_are_cancelled_whatever_they_do(world: World) -> None:
    runs = world.runlane.runs
    waiting = world.runlane.trigger(fine, Job(number=1), concurrency_key="k", queue=other).run.run_id
    later = world.runlane.trigger(fine, Job(number=2), delay="1h").run.run_id
    running = world.lane.claim_one(world.runlane.trigger(fine, Job(number=3)).run.run_id).run_id
    assert runs.cancel_many(everything=True, dry_run=True) == BulkReport(3, 3)
    assert runs.cancel_many(queue=other).done == 1
    assert runs.cancel_many(status=["scheduled", Status.RUNNING], reason="stop", actor="ann") == BulkReport(2, 2)
    assert [world.get(run_id).status for run_id in (waiting, later, running)] == ["cancelled", "cancelled", "cancellation_requested"]


def test_a_move_on_many_says_what_it_was_not_told(world: World) -> None:
    runs = world.runlane.runs
    for move in (runs.cancel_many, runs.retry_many, runs.rerun_many):
        with pytest.raises(ContractError) as missing:
            move(tenant=None)
        assert missing.value.code == "filter_missing"
        for wrong in ({"limit": 0}, {"tenants": "t"}, {"source": "magic"}, {"cursor": "?"}, {"task": 5}):
            with pytest.raises(ContractError):
                move(everything=True, **wrong)  # type: ignore[arg-type]
    for move, status in ((runs.cancel_many, "failed"), (runs.retry_many, "cancelled"), (runs.rerun_many, "queued")):
        with pytest.raises(ContractError) as wrong_status:
            move(status=status)
        assert wrong_status.value.meta["field"] == "status"
    with pytest.raises(ContractError):
        runs.prune(older_than="1d", statuses=["running"])


def test_a_run_is_moved_in_time_and_what_cannot_be_is_refused(world: World) -> None:
    runs = world.runlane.runs
    run_id = world.runlane.trigger(fine, Job(number=1), delay="1h").run.run_id
    assert runs.reschedule(run_id, datetime.now(UTC) + timedelta(minutes=5), actor="ann") is Status.SCHEDULED
    assert [wakeup.run_id for wakeup in world.wire.delayed if wakeup.hint][-1] == run_id
    assert runs.reschedule(run_id, datetime.now(UTC)) is Status.QUEUED
    world.deliver_sent()
    assert world.get(run_id).status is Status.SUCCEEDED
    (moved, _) = (event for event in runs.events(run_id) if event.type == "run.rescheduled")
    assert (moved.actor, set(moved.data or {})) == ("ann", {"due_at", "was_due_at"})
    with pytest.raises(ConflictError) as refused:
        runs.reschedule(run_id, datetime.now(UTC))
    assert (refused.value.code, refused.value.meta["status"]) == ("run_not_waiting", "succeeded")
    with pytest.raises(NotFoundError):
        runs.reschedule(UNKNOWN, datetime.now(UTC))
    with pytest.raises(ContractError):
        runs.reschedule(run_id, datetime(2026, 1, 1))  # noqa: DTZ001


def test_pruning_tells_how_far_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.services.operate.prune.BATCH", 2)
    failed(world, *range(3))
    for number in range(2):
        world.runlane.trigger(fine, Job(number=number))
    world.deliver_sent()
    runs, reports = world.runlane.runs, list[BulkReport]()
    assert runs.prune(older_than="1d") == BulkReport(0, 0)
    assert runs.prune(older_than="0s", dry_run=True) == BulkReport(5, 5)
    assert runs.prune(older_than="0s", statuses=["failed"], limit=2) == BulkReport(2, 2)
    assert runs.prune(older_than="0s", on_progress=reports.append) == BulkReport(3, 3)
    assert reports == [BulkReport(2, 2), BulkReport(3, 3)]
    assert runs.list().data == ()


def test_no_status_at_all_is_refused_by_what_moves_many_runs(open_world: OpenWorld) -> None:
    runs = open_world([], [main]).runlane.runs
    with pytest.raises(ContractError, match="no status is given"):
        runs.prune(older_than="1d", statuses=())
    with pytest.raises(ContractError, match="no status is given"):
        runs.cancel_many(status=[], queue=main)
