"""Publishing, against two independent imitations of SQS."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from runlane.adapters.sqs.bindings import sqs_queue
from runlane.adapters.sqs.envelope import parse_wakeup
from runlane.adapters.sqs.transport import SqsTransport
from tests.sqs.wakeups import EMAILS, REPORTS, wakeup, wakeups

pytestmark = pytest.mark.sqs


@pytest.fixture
def names(sqs: Any) -> tuple[str, str]:
    """An SQS queue for each logical queue."""
    made = (f"emails-{uuid.uuid4().hex}", f"reports-{uuid.uuid4().hex}")
    for name in made:
        sqs.create_queue(QueueName=name)
    return made


@pytest.fixture
def transport(endpoint: str | None, sqs: Any, names: tuple[str, str]) -> Iterator[SqsTransport]:
    url = sqs.get_queue_url(QueueName=names[0])["QueueUrl"]
    made = SqsTransport([sqs_queue(EMAILS, queue_url=url), sqs_queue(REPORTS, queue_name=names[1])], "production", endpoint_url=endpoint)
    yield made
    made.close()


def received(sqs: Any, name: str, count: int) -> list[dict[str, Any]]:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found: list[dict[str, Any]] = []
    for _ in range(count + 3):
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], WaitTimeSeconds=0)
        found += answer.get("Messages", [])
    return found


def test_each_wakeup_arrives_once_in_its_own_queue(transport: SqsTransport, sqs: Any, names: tuple[str, str]) -> None:
    sent = [wakeup("reports" if i % 3 else "emails", trace={"traceparent": "00-x"}) for i in range(37)]
    results = transport.publish(sent)
    assert [(result.run_id, result.published, result.error) for result in results] == [(one.run_id, True, None) for one in sent]
    for queue, name in zip(("emails", "reports"), names, strict=True):
        mine = sorted(one.run_id for one in sent if one.queue == queue)
        messages = [parse_wakeup(message["Body"], "production") for message in received(sqs, name, len(mine))]
        assert sorted(message.run_id for message in messages) == mine
        assert {(message.queue, message.trace and message.trace["traceparent"]) for message in messages} == {(queue, "00-x")}


def test_a_group_is_sent_with_a_key_and_only_then(transport: SqsTransport, sqs: Any, names: tuple[str, str]) -> None:
    keyed = wakeup(tenant="acme", concurrency_key="customer-1")
    transport.publish([keyed, wakeup(tenant="acme")])
    groups = {
        parse_wakeup(message["Body"], "production").run_id == keyed.run_id: message["Attributes"].get("MessageGroupId")
        for message in received(sqs, names[0], 2)
    }
    assert groups[True].startswith("runlane_")
    assert groups[False] is None


def test_a_delayed_wakeup_is_held_back(transport: SqsTransport, sqs: Any, names: tuple[str, str]) -> None:
    now = wakeup()
    assert all(result.published for result in transport.publish([now, wakeup(delay=timedelta(hours=2))]))
    (message,) = received(sqs, names[0], 1)
    assert parse_wakeup(message["Body"], "production").run_id == now.run_id


def test_a_queues_own_default_delay_does_not_hold(transport: SqsTransport, sqs: Any, names: tuple[str, str]) -> None:
    url = sqs.get_queue_url(QueueName=names[0])["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "900"})
    transport.publish(wakeups(1))
    assert len(received(sqs, names[0], 1)) == 1


def test_large_traces_are_cut_into_batches_that_sqs_accepts(transport: SqsTransport, sqs: Any, names: tuple[str, str]) -> None:
    results = transport.publish(wakeups(12, trace={"tracestate": "x" * 200_000}))
    assert all(result.published for result in results)


def test_a_queue_that_is_gone_is_not_retryable(endpoint: str | None, sqs: Any) -> None:
    transport = SqsTransport([sqs_queue(EMAILS, queue_name=f"gone-{uuid.uuid4().hex}")], "production", endpoint_url=endpoint)
    (result,) = transport.publish(wakeups(1))
    transport.close()
    assert (result.published, result.retryable) == (False, False)
    assert str(result.error).startswith("configuration_invalid: get_queue_url: ")


def test_nothing_to_publish_needs_no_client() -> None:
    def factory() -> Any:
        raise AssertionError("a client was made")

    assert SqsTransport([sqs_queue(EMAILS, queue_name="emails")], "production", client_factory=factory).publish([]) == ()


def test_a_transport_can_be_closed_twice_and_used_again(transport: SqsTransport) -> None:
    transport.publish(wakeups(30))
    transport.close()
    transport.close()
    assert all(result.published for result in transport.publish(wakeups(30)))


def test_importing_the_transport_does_not_import_boto3() -> None:
    script = "import sys, runlane.adapters.sqs.transport; sys.exit(bool({'boto3', 'botocore'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
