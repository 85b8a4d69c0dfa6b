"""The stack as it is deployed: built artifacts, real functions, queues, mappings, the schedule; in the order of a deployment's life."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from runlane.domain.ids import RunId
from runlane.domain.records import RunRecord
from runlane.domain.run import Status
from tests.e2e.application import Work, endless, fan, flaky, flaky_in_order, mortal, one_a_key, plain
from tests.e2e.stack import MAXIMUM_CONCURRENCY, NAME, Stack
from tests.postgres.invariants import check_invariants
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def killed(stack: Stack) -> RunId:
    """A run that has killed its worker. It takes a lease and a tick to come back, so it begins before anything else."""
    (run_id,) = stack.trigger(mortal, [Work()])
    until(lambda: bool(stack.runlane.runs.attempts(run_id)))
    return run_id


def results(runs: list[RunRecord]) -> list[dict[str, Any]]:
    assert {run.status for run in runs} == {Status.SUCCEEDED}, [run.failure for run in runs if run.failure]
    return [run.result for run in runs]


def test_a_run_succeeds_with_the_packaged_code(stack: Stack, killed: RunId) -> None:
    found = results(stack.ended(stack.trigger(plain, [Work(number=number) for number in range(30)])))
    assert sorted(result["number"] for result in found) == list(range(30))
    assert {result["release"] for result in found} == {1}


def test_a_function_triggers_runs_of_its_own(stack: Stack) -> None:
    (parent,) = stack.ended(stack.trigger(fan, [Work(number=12)]))
    assert len(results(stack.ended([RunId(run_id) for run_id in parent.result]))) == 12


def test_a_task_that_fails_is_tried_again(stack: Stack) -> None:
    (run,) = stack.ended(stack.trigger(flaky, [Work()]))
    assert (run.status, run.attempt, run.result) == (Status.SUCCEEDED, 3, 3)


def test_a_fifo_queue_and_the_timers_that_it_needs_are_wired(stack: Stack) -> None:
    runs = stack.ended(stack.trigger(flaky_in_order, [Work(number=number) for number in range(3)]))
    assert [run.result for run in runs] == [2, 2, 2]


def test_no_more_functions_than_the_mapping_allows_run_at_once(stack: Stack) -> None:
    runs = stack.ended(stack.trigger(plain, [Work(number=number, seconds=0.4) for number in range(80)]))
    assert 1 < most_at_once(results(runs), by="pid") <= MAXIMUM_CONCURRENCY


def test_a_concurrency_limit_holds_for_each_key(stack: Stack) -> None:
    found = results(stack.ended(stack.trigger(one_a_key, [Work(number=number, seconds=0.1) for number in range(24)])))
    for key in range(3):
        spans = sorted((one["started_at"], one["ended_at"]) for one in found if one["number"] % 3 == key)
        assert len(spans) == 8
        assert all(ended <= started for (_, ended), (started, _) in pairwise(spans))
    assert most_at_once(found, by="number") > 1, "keys do not wait for each other"


def most_at_once(found: list[dict[str, Any]], *, by: str) -> int:
    """The largest number of different values of `by` at any start."""
    starts = [one["started_at"] for one in found]
    return max(len({one[by] for one in found if one["started_at"] <= start < one["ended_at"]}) for start in starts)


@pytest.fixture
def _soon_seen_again(stack: Stack) -> Iterator[None]:
    """What a batch leaves is received again after a second, not half an hour."""
    queue, sqs = stack.outputs["MainQueueUrl"], stack.cloud.client("sqs")
    shipped = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["VisibilityTimeout"])["Attributes"]
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "1"})
    yield
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=shipped)


@pytest.mark.usefixtures("_soon_seen_again")
def test_a_malformed_message_reaches_the_dead_letter_queue_alone(stack: Stack) -> None:
    sqs, outputs = stack.cloud.client("sqs"), stack.outputs
    runs = stack.trigger(plain, [Work(number=number) for number in range(10)])
    sqs.send_message(QueueUrl=outputs["MainQueueUrl"], MessageBody="no wakeup")
    runs += stack.trigger(plain, [Work(number=number) for number in range(10)])
    results(stack.ended(runs))
    until(lambda: waiting(stack, outputs["MainDeadLettersUrl"]) > 0)
    dead = sqs.receive_message(QueueUrl=outputs["MainDeadLettersUrl"], MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in dead] == ["no wakeup"]


def waiting(stack: Stack, queue: str) -> int:
    return int(attributes(stack, queue)["ApproximateNumberOfMessages"])


@pytest.fixture
def _short_of_time(stack: Stack) -> Iterator[None]:
    """The worker with a time-out of twelve seconds."""
    functions, name = stack.cloud.client("lambda"), stack.outputs["WorkerName"]
    shipped = stack.worker()["Timeout"]
    functions.update_function_configuration(FunctionName=name, Timeout=12)
    yield
    functions.update_function_configuration(FunctionName=name, Timeout=shipped)


@pytest.mark.usefixtures("_short_of_time")
def test_a_run_that_takes_no_notice_of_the_functions_time_out_is_settled_as_timed_out(stack: Stack) -> None:
    (run,) = stack.ended(stack.trigger(endless, [Work()]))
    assert run.status is Status.FAILED
    assert run.failure is not None
    assert run.failure.code == "timed_out"
    assert results(stack.ended(stack.trigger(plain, [Work()]))), "the next invocation has a process of its own"


# What AWS asks for, or does, and the emulator does not


def test_what_was_deployed_is_what_aws_takes(stack: Stack) -> None:
    sqs, functions = stack.cloud.client("sqs"), stack.cloud.client("lambda")
    queues = {arn(stack, url): attributes(stack, url) for url in sqs.list_queues()["QueueUrls"]}
    mappings = functions.list_event_source_mappings()["EventSourceMappings"]
    assert len(mappings) == 4
    for mapping in mappings:
        queue = queues[mapping["EventSourceArn"]]
        waited = mapping.get("MaximumBatchingWindowInSeconds", 0)
        assert int(queue["VisibilityTimeout"]) >= 6 * stack.worker()["Timeout"] + waited
        assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert int(mapping["ScalingConfig"]["MaximumConcurrency"]) == MAXIMUM_CONCURRENCY
        redrive = json.loads(queue["RedrivePolicy"])
        assert queues[redrive["deadLetterTargetArn"]].get("FifoQueue") == queue.get("FifoQueue")
        assert int(redrive["maxReceiveCount"]) >= 5


def test_every_alarm_watches_something_that_is_there(stack: Stack) -> None:
    """None of them is ever raised here; a misspelt dimension would keep it from that in AWS, too."""
    names = {"QueueName": {url.rsplit("/", 1)[-1] for url in stack.cloud.client("sqs").list_queues()["QueueUrls"]}}
    names["FunctionName"] = {one["FunctionName"] for one in stack.cloud.client("lambda").list_functions()["Functions"]}
    alarms = stack.cloud.client("cloudwatch").describe_alarms()["MetricAlarms"]
    watched = [(one["Name"], one["Value"]) for alarm in alarms for one in alarm["Dimensions"] if one["Name"] in names]
    assert len(watched) >= 9, "of each queue its age and its dead letters, and the worker's errors"
    assert [(name, value) for name, value in watched if value not in names[name]] == []


def arn(stack: Stack, url: str) -> str:
    return attributes(stack, url)["QueueArn"]


def attributes(stack: Stack, url: str) -> dict[str, str]:
    found: dict[str, str] = stack.cloud.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return found


# A release under load: what the second one's code and schema find


MIGRATIONS = {
    "9000_needed.before.sql": "CREATE TABLE {schema}.second_release (at timestamptz);\n",
    "9001_unused.after.sql": "DROP TABLE {schema}.second_release;\n",
}
LEASE_AND_TICK = 150.0
"""Seconds. An update of a function ends its processes here; in AWS their invocations end first."""


def test_an_update_with_a_migration_under_load_loses_nothing(stack: Stack) -> None:
    for name, text in MIGRATIONS.items():
        (stack.project.folder / "shared/runlane/adapters/postgres/migrations" / name).write_text(text)
    stack.project.write_release(2)
    stopped = threading.Event()
    triggered: list[RunId] = []

    def load() -> None:
        while not stopped.wait(0.2):
            triggered.extend(stack.trigger(plain, [Work(number=number, seconds=0.05) for number in range(3)]))
            triggered.extend(stack.trigger(one_a_key, [Work(number=len(triggered), seconds=0.05)]))

    client = threading.Thread(target=load)
    client.start()
    try:
        # Its mappings go over to a version while they deliver.
        stack.deploy(SnapStart="on")
        before = len(triggered)
        until(lambda: len(triggered) > before + 20)
    finally:
        stopped.set()
        client.join()
    found = results(stack.ended(triggered, LEASE_AND_TICK))
    started = {release: [one["started_at"] for one in found if one["release"] == release] for release in (1, 2)}
    applied = "SELECT number, extract(epoch FROM applied_at)::float8 FROM runlane.migration WHERE number >= 9000"
    ((number, at),) = stack.database.execute(applied.encode()).fetchall()
    assert number == 9000, "what the first release may still use goes with a later one"
    assert at < min(started[2]), "no code meets a schema that lacks what it needs"
    assert started[1]
    announced = "SELECT count(*) FROM runlane.announced_migration WHERE number = 9001"
    assert stack.database.execute(announced.encode()).fetchone() == (1,), "the phase after the functions ran, too"


def test_snapshots_are_of_what_is_deployed(stack: Stack) -> None:
    first = stack.version()
    stack.deploy(WorkerConcurrency="4")
    second = stack.version()
    assert second["Environment"]["Variables"]["RUNLANE_WORKER_CONCURRENCY"] == "4", "what only a parameter has changed is published"
    assert first["Version"] != second["Version"] != "$LATEST"
    assert results(stack.ended(stack.trigger(plain, [Work()])))[0]["release"] == 2
    name = stack.outputs["WorkerName"]
    versions = stack.cloud.client("lambda").list_versions_by_function(FunctionName=name)["Versions"]
    assert [one["Version"] for one in versions] == ["$LATEST", second["Version"]], "old ones do not stay"


# What takes a minute has passed meanwhile


def test_the_schedule_fires_maintenance(stack: Stack) -> None:
    until(lambda: stack.database.execute("SELECT count(*) FROM runlane.upkeep").fetchone() == (1,), timeout=90)


def test_the_run_of_a_killed_worker_is_recovered(stack: Stack, killed: RunId) -> None:
    (run,) = stack.ended([killed], LEASE_AND_TICK)
    assert (run.status, run.result) == (Status.SUCCEEDED, 2)
    first, _ = stack.runlane.runs.attempts(killed)
    assert first.outcome is not None


def test_every_run_that_was_ever_triggered_has_ended_and_every_count_is_true(stack: Stack) -> None:
    check_invariants(stack.database)
    open_runs = "SELECT count(*) FROM runlane.run LEFT JOIN runlane.outcome USING (run_id) WHERE outcome.run_id IS NULL"
    assert stack.database.execute(open_runs.encode()).fetchone() == (0,)


def test_deleting_the_stack_leaves_nothing_but_the_database(stack: Stack) -> None:
    stack.delete()
    cloud = stack.cloud
    left = {
        "functions": cloud.client("lambda").list_functions()["Functions"],
        "mappings": cloud.client("lambda").list_event_source_mappings()["EventSourceMappings"],
        "layers": cloud.client("lambda").list_layers()["Layers"],
        "queues": cloud.client("sqs").list_queues().get("QueueUrls", []),
        "rules": cloud.client("events").list_rules()["Rules"],
        "schedules": cloud.client("scheduler").list_schedules()["Schedules"],
        "log groups": cloud.client("logs").describe_log_groups()["logGroups"],
        "roles": [role for role in cloud.client("iam").list_roles()["Roles"] if NAME in role["RoleName"]],
        "alarms": cloud.client("cloudwatch").describe_alarms()["MetricAlarms"],
    }
    assert {what: found for what, found in left.items() if found} == {}
    assert stack.database.execute("SELECT count(*) > 100 FROM runlane.outcome").fetchone() == (True,)
