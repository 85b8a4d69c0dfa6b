"""An SQS that misbehaves: every wakeup gets its own true outcome, and nothing is raised."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest

from runlane.adapters.sqs.bindings import sqs_queue
from runlane.adapters.sqs.client import sqs_client
from runlane.adapters.sqs.transport import SqsTransport
from runlane.ports.stores import PublishResult, Wakeup
from tests.sqs.misbehaving import Behaviour, Sqs, answer, drop, fail_entries, misbehaving, refuse, succeed
from tests.sqs.wakeups import EMAILS, REPORTS, wakeup, wakeups


def transport_to(endpoint: str, read_timeout: float = 5, **binding: Any) -> SqsTransport:
    target = binding or {"queue_url": f"{endpoint}/000000000000/emails"}
    return SqsTransport(
        [sqs_queue(EMAILS, **target), sqs_queue(REPORTS, queue_url=f"{endpoint}/000000000000/reports")],
        "production",
        client_factory=partial(sqs_client, endpoint, connect_timeout=1, read_timeout=read_timeout),
    )


def publish(sqs: Sqs, sent: list[Wakeup], **options: Any) -> tuple[PublishResult, ...]:
    transport = transport_to(sqs.url, **options)
    try:
        return transport.publish(sent)
    finally:
        transport.close()


def only(results: tuple[PublishResult, ...]) -> tuple[bool, bool, str]:
    """What all results have in common: published, retryable, the error's code."""
    (common,) = {(result.published, result.retryable, (result.error or "").partition(":")[0]) for result in results}
    return common


@pytest.mark.parametrize(
    "behaviour",
    [
        refuse(500, "InternalError"),
        refuse(503, "ServiceUnavailable"),
        answer(502, b"<html>bad gateway</html>"),
        refuse(400, "RequestThrottled"),
        refuse(400, "ThrottlingException"),
        refuse(429, "Slow"),
        refuse(403, "ExpiredToken"),
        drop,
    ],
)
def test_trouble_that_passes_is_retryable_and_tried_twice_at_most(behaviour: Behaviour) -> None:
    with misbehaving(behaviour) as sqs:
        assert only(publish(sqs, wakeups(3))) == (False, True, "transport_unavailable")
        assert len(sqs.requests) <= 2


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidClientTokenId", "QueueDoesNotExist", "BatchRequestTooLong"])
def test_trouble_that_stays_is_not_retryable(code: str) -> None:
    with misbehaving(refuse(400, code)) as sqs:
        results = publish(sqs, wakeups(2))
        assert only(results) == (False, False, "transport_publish_failed")
        assert code in str(results[0].error)
        assert len(sqs.requests) == 1


def test_a_second_try_that_succeeds_is_a_success() -> None:
    with misbehaving(refuse(500, "InternalError"), succeed) as sqs:
        assert only(publish(sqs, wakeups(3)))[0]
        assert len(sqs.requests) == 2


def test_a_hanging_sqs_is_given_up() -> None:
    with misbehaving(succeed) as sqs:
        sqs.behaviours = [sqs.hang]
        started = time.monotonic()
        assert only(publish(sqs, wakeups(2), read_timeout=0.2)) == (False, True, "transport_unavailable")
        assert time.monotonic() - started < 30


def test_an_sqs_that_is_not_there_is_retryable() -> None:
    transport = transport_to("http://127.0.0.1:1")
    assert only(transport.publish(wakeups(2))) == (False, True, "transport_unavailable")
    transport.close()


@pytest.mark.parametrize(
    ("fault", "retryable"),
    [
        ({"SenderFault": True, "Code": "InvalidMessageContents", "Message": "bad"}, False),
        ({"SenderFault": False, "Code": "InternalError"}, True),
        ({"Code": "InternalError"}, True),
        ({"SenderFault": True, "Code": "RequestThrottled"}, True),
    ],
)
def test_a_failed_entry_is_retryable_unless_it_is_the_senders_fault(fault: dict[str, Any], retryable: bool) -> None:
    with misbehaving(fail_entries(**fault)) as sqs:
        results = publish(sqs, wakeups(5))
        assert [result.published for result in results] == [False, True, False, True, False]
        assert only(results[::2]) == (False, retryable, "transport_publish_failed")


def test_a_hint_stays_a_hint_in_its_result() -> None:
    with misbehaving(fail_entries(SenderFault=True, Code="X")) as sqs:
        sent = [wakeup(hint=True), wakeup(hint=True), wakeup()]
        results = publish(sqs, sent)
        assert [(result.run_id, result.hint) for result in results] == [(one.run_id, one.hint) for one in sent]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"Successful": [], "Failed": []},
        {"Successful": [{"Id": "other", "MessageId": "m"}]},
        {"Successful": [{"Id": "0", "MessageId": "m"}], "Failed": [{"Id": "0", "SenderFault": True, "Code": "X"}]},
        b"not json",
        b"",
    ],
)
def test_an_answer_that_does_not_name_the_entry_once_is_retryable(body: Any) -> None:
    with misbehaving(answer(200, body)) as sqs:
        assert only(publish(sqs, wakeups(1)))[:2] == (False, True)


def test_successes_survive_the_failure_of_another_batch() -> None:
    def emails_only(request: dict[str, Any]) -> Any:
        return succeed(request) if request["QueueUrl"].endswith("emails") else refuse(403, "AccessDenied")(request)

    with misbehaving(emails_only) as sqs:
        sent = [wakeup("reports" if i % 3 else "emails") for i in range(45)]
        results = publish(sqs, sent)
        assert [result.run_id for result in results] == [one.run_id for one in sent]
        assert [result.published for result in results] == [one.queue == "emails" for one in sent]


def test_a_later_batch_that_fails_leaves_the_earlier_ones_published() -> None:
    def first_ten_only(request: dict[str, Any]) -> Any:
        return succeed(request) if request["Entries"][0]["Id"] == "0" else refuse(500, "InternalError")(request)

    with misbehaving(first_ten_only) as sqs:
        assert [result.published for result in publish(sqs, wakeups(25))] == [True] * 10 + [False] * 15


def test_an_outage_does_not_cost_a_time_out_for_each_batch() -> None:
    with misbehaving(succeed) as sqs:
        sqs.behaviours = [sqs.hang]
        results = publish(sqs, wakeups(1000), read_timeout=0.2)
        assert only(results) == (False, True, "transport_unavailable")
        assert "not sent after" in str(results[-1].error)
        assert len(sqs.requests) < 40


def test_batches_are_sent_in_parallel() -> None:
    together = threading.Barrier(4)

    def meet(request: dict[str, Any]) -> Any:
        together.wait(60)
        return succeed(request)

    with misbehaving(meet) as sqs:
        assert only(publish(sqs, wakeups(40)))[0]
        assert len(sqs.requests) == 4


def test_a_queue_name_is_looked_up_once_with_its_owner() -> None:
    def by_name(request: dict[str, Any]) -> Any:
        return (200, {"QueueUrl": "http://sqs/1/emails"}) if request["operation"] == "GetQueueUrl" else succeed(request)

    with misbehaving(by_name) as sqs:
        transport = transport_to(sqs.url, queue_name="emails", queue_owner_account_id="123456789012")
        for _ in range(3):
            assert only(transport.publish(wakeups(25)))[0]
        transport.close()
        look_ups = [request for request in sqs.requests if request["operation"] == "GetQueueUrl"]
        assert look_ups == [{"operation": "GetQueueUrl", "QueueName": "emails", "QueueOwnerAWSAccountId": "123456789012"}]
        assert {request.get("QueueUrl") for request in sqs.requests} == {None, "http://sqs/1/emails"}


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        (refuse(400, "QueueDoesNotExist"), (False, False, "configuration_invalid")),
        (refuse(403, "AccessDenied"), (False, False, "transport_unavailable")),
        (refuse(500, "InternalError"), (False, True, "transport_unavailable")),
        (answer(200, {}), (False, True, "transport_unavailable")),
    ],
)
def test_a_name_that_cannot_be_resolved_fails_its_own_queue_only(behaviour: Behaviour, outcome: tuple[bool, bool, str]) -> None:
    def by_name(request: dict[str, Any]) -> Any:
        return behaviour(request) if request["operation"] == "GetQueueUrl" else succeed(request)

    with misbehaving(by_name) as sqs:
        results = publish(sqs, [*wakeups(2), *wakeups(2, "reports")], queue_name="emails")
        assert only(results[:2]) == outcome
        assert only(results[2:])[0]


def test_a_failed_look_up_is_tried_again() -> None:
    answers = [refuse(403, "AccessDenied"), answer(200, {"QueueUrl": "http://sqs/1/emails"}), succeed]
    with misbehaving(*answers) as sqs:
        transport = transport_to(sqs.url, queue_name="emails")
        assert not only(transport.publish(wakeups(1)))[0]
        assert only(transport.publish(wakeups(1)))[0]
        transport.close()


def test_a_queue_without_a_binding_fails_alone() -> None:
    with misbehaving() as sqs:
        results = publish(sqs, [wakeup("unknown"), wakeup()])
        assert only(results[:1]) == (False, False, "configuration_invalid")
        assert only(results[1:])[0]


def test_an_error_is_short_and_names_the_request() -> None:
    with misbehaving(refuse(403, "AccessDenied", "x" * 100_000)) as sqs:
        (result,) = publish(sqs, wakeups(1))
        assert len(str(result.error)) < 400
        assert "request-1" in str(result.error)


@pytest.mark.parametrize(("trouble", "retryable"), [(RuntimeError("boom"), False), (OSError("gone"), True), (ImportError("boto3"), False)])
def test_a_client_that_cannot_be_made_is_an_outcome_and_tried_again(trouble: Exception, retryable: bool) -> None:
    with misbehaving() as sqs:
        troubles = [trouble]

        def factory() -> Any:
            if troubles:
                raise troubles.pop()
            return sqs_client(sqs.url)

        transport = SqsTransport([sqs_queue(EMAILS, queue_name="emails")], "production", client_factory=factory)
        assert only(transport.publish(wakeups(2)))[:2] == (False, retryable)
        sqs.behaviours = [answer(200, {"QueueUrl": "http://sqs/1/emails"}), succeed]
        assert only(transport.publish(wakeups(2)))[0]
        transport.close()


def test_a_missing_region_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    transport = SqsTransport([sqs_queue(EMAILS, queue_name="emails")], "production")
    (result,) = transport.publish(wakeups(1))
    assert not result.published
    assert "NoRegionError" in str(result.error)
