"""The doctor on what is deployed, asked of SQS and Lambda in their own words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from runlane.adapters.aws.deployment import AwsDeployment
from runlane.domain.finding import Finding, Level
from runlane.ports.deployment import FunctionState, MappingState, QueueState, Unseen
from runlane.services.doctor import examine
from runlane.services.doctor.deployment import BoundQueue, Difference, deployment_checks
from tests.aws.stack import REGION, Stack

MINUTE = timedelta(minutes=1)


def nothing(_: Mapping[str, str]) -> Iterable[Difference]:
    return ()


def found(*queues: BoundQueue, lease: timedelta = MINUTE, differences: Any = nothing) -> list[Finding]:
    deployment = AwsDeployment()
    try:
        return list(examine(deployment_checks(deployment, queues, lease=lease, differences=differences)).findings)
    finally:
        deployment.close()


def wrong(url: str, **given: Any) -> list[tuple[Level, str]]:
    return [(finding.level, finding.what) for finding in found(BoundQueue("main", url), **given) if finding.level is not Level.OK]


def test_what_the_template_makes_is_well() -> None:
    stack = Stack()
    function = stack.function()
    urls = [stack.queue("main"), stack.queue("ledger.fifo", receives=15)]
    for url in urls:
        stack.map(url, function)
    findings = found(*(BoundQueue(url, url) for url in urls))
    assert [finding.level for finding in findings] == [Level.OK] * 3
    assert all(finding.what for finding in findings)


@pytest.mark.parametrize(
    ("given", "level", "what"),
    [
        ({"receives": None}, Level.FAILURE, "has no dead-letter queue"),
        ({"receives": 1}, Level.WARNING, "after 1 receives a message is a dead letter"),
        ({"letters_kept": 3600}, Level.WARNING, "keeps messages for 14d, its dead letters only for 1h"),
        ({"VisibilityTimeout": "900"}, Level.FAILURE, "hides a message for 15m, and worker may run for 5m"),
        ({"SqsManagedSseEnabled": "false"}, Level.WARNING, "is not encrypted"),
    ],
)
def test_a_queue_that_is_not_as_it_must_be_is_told(given: dict[str, Any], level: Level, what: str) -> None:
    stack = Stack()
    url = stack.queue("main", **given)
    stack.map(url, stack.function())
    assert wrong(url) == [(level, f"SQS queue of main: {what}")]


@pytest.mark.parametrize(
    ("given", "level", "what"),
    [
        ({"FunctionResponseTypes": []}, Level.FAILURE, "its mapping does not take ReportBatchItemFailures"),
        ({"ScalingConfig": {}}, Level.WARNING, "its mapping has no MaximumConcurrency"),
    ],
)
def test_a_mapping_that_loses_or_floods_is_told(given: dict[str, Any], level: Level, what: str) -> None:
    stack = Stack()
    url = stack.queue("main")
    stack.map(url, stack.function(), **given)
    assert wrong(url) == [(level, f"SQS queue of main: {what}")]


def test_a_mapping_that_is_off_is_told() -> None:
    stack = Stack()
    url = stack.queue("main")
    mapping = stack.map(url, stack.function())
    stack.functions.update_event_source_mapping(UUID=mapping, Enabled=False)
    ((level, what),) = wrong(url)
    assert (level, what.split(": ")[1]) in {(Level.FAILURE, "its mapping is disabled"), (Level.FAILURE, "its mapping is disabling")}


def test_a_queue_that_is_gone_and_one_that_nobody_serves_are_told() -> None:
    stack = Stack()
    url = stack.queue("main")
    assert wrong(url) == [(Level.WARNING, "SQS queue of main: is mapped to no function")]
    stack.sqs.delete_queue(QueueUrl=url)
    assert wrong(url) == [(Level.FAILURE, "SQS queue of main: does not exist")]


def test_dead_letters_are_counted_and_a_queue_of_them_that_is_gone_is_told() -> None:
    stack = Stack()
    url = stack.queue("main")
    stack.map(url, stack.function())
    letters = stack.sqs.get_queue_url(QueueName="letters-main")["QueueUrl"]
    stack.sqs.send_message(QueueUrl=letters, MessageBody="?")
    assert wrong(url) == [(Level.WARNING, "SQS queue of main: has about 1 dead letters")]
    stack.sqs.delete_queue(QueueUrl=letters)
    assert wrong(url) == [(Level.FAILURE, "SQS queue of main: its dead-letter queue does not exist")]


def test_a_lease_that_outlasts_the_receives_of_a_fifo_queue_is_told() -> None:
    """1 s, 2 s, 4 s … until fifteen receives are used up: an hour and a half."""
    stack = Stack()
    url = stack.queue("main.fifo", receives=15)
    stack.map(url, stack.function())
    assert wrong(url, lease=timedelta(minutes=90)) == []
    ((level, what),) = wrong(url, lease=timedelta(minutes=93))
    assert (level, what) == (Level.FAILURE, "SQS queue of main: a lease of 93m outlasts 15 receives, which take 5523s")
    assert wrong(stack.queue("main"), lease=timedelta(hours=10)) == [(Level.WARNING, "SQS queue of main: is mapped to no function")]


def test_a_queue_that_several_share_is_looked_at_once() -> None:
    url = Stack().queue("main")
    (one,) = found(BoundQueue("a", url), BoundQueue("b", url))
    assert one.what.startswith("SQS queue of a, b: ")


def test_a_function_that_is_told_something_else_is_told_with_both() -> None:
    stack = Stack()
    url = stack.queue("main")
    stack.map(url, stack.function(RUNLANE_ENVIRONMENT="staging"))

    def differences(variables: Mapping[str, str]) -> Iterator[Difference]:
        yield Difference("RUNLANE_ENVIRONMENT", variables["RUNLANE_ENVIRONMENT"], "production", Level.FAILURE)

    (other,) = [finding for finding in found(BoundQueue("main", url), differences=differences) if finding.check == "functions"]
    assert (other.level, other.what) == (Level.FAILURE, "worker: RUNLANE_ENVIRONMENT is staging there, and production here")


def test_loop_detection_is_told_where_lambda_tells_it() -> None:
    deployment = AwsDeployment()
    client: Any = boto3.client("lambda", region_name=REGION)
    deployment._clients["lambda"] = client
    with Stubber(client) as stub:
        for setting, expected in (("Allow", True), ("Terminate", False)):
            stub.add_response("get_function_configuration", {"FunctionName": "worker", "Timeout": 3})
            stub.add_response("get_function_recursion_config", {"RecursiveLoop": setting}, {"FunctionName": "worker"})
            state = deployment.function("arn:aws:lambda:eu-west-1:123456789012:function:worker:live")
            assert isinstance(state, FunctionState)
            assert state.may_follow_itself is expected


def test_what_may_not_be_seen_is_no_fault_and_says_what_to_allow() -> None:
    deployment = AwsDeployment()
    client: Any = boto3.client("sqs", region_name=REGION)
    deployment._clients["sqs"] = client
    with Stubber(client) as stub:
        stub.add_client_error("get_queue_attributes", "AccessDenied")
        state = deployment.queue_at("https://sqs/main")
    assert state == Unseen("sqs:GetQueueAttributes is denied", "allow sqs:GetQueueAttributes to whoever runs the doctor")


def test_without_an_account_nothing_is_seen_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    (unseen,) = found(BoundQueue("main", "https://sqs.eu-west-1.amazonaws.com/1/main"))
    assert (unseen.level, "NoRegionError" in unseen.what) == (Level.UNSEEN, True)


def test_a_function_that_mappings_name_and_that_is_gone_is_told() -> None:
    class Gone:
        def queue_at(self, url: str) -> QueueState:
            return QueueState("arn:aws:sqs:r:1:main", False, 30 * MINUTE, MINUTE, True, 0, "letters", 5, 150 * MINUTE)

        queue_of = queue_at

        def mappings(self, queue_arn: str) -> tuple[MappingState, ...]:
            return (MappingState("worker", "Enabled", True, 10),)

        def function(self, name: str) -> None:
            return None

    findings = examine(deployment_checks(Gone(), [BoundQueue("main", "u")], lease=MINUTE, differences=nothing)).findings
    assert [(finding.check, finding.level) for finding in findings] == [("queues", Level.OK), ("functions", Level.FAILURE)]
