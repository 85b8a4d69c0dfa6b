from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from runlane.adapters.local.poller import EventSourcePoller, Handler, event_source
from runlane.adapters.local.sqs import LocalQueue, LocalSqs, local_sqs_client
from tests.waiting import until

pytestmark = pytest.mark.sqs


@contextmanager
def polling(sqs: LocalSqs, queue: LocalQueue, handler: Handler, concurrency: int = 2) -> Iterator[EventSourcePoller]:
    source = event_source(sqs.client, queue.url, maximum_concurrency=concurrency)
    poller = EventSourcePoller(sqs.client, [source], handler, timeout=timedelta(seconds=9)).start()
    try:
        yield poller
    finally:
        assert poller.stop()


def send(sqs: LocalSqs, queue: LocalQueue, *bodies: str) -> None:
    sqs.client.send_message_batch(QueueUrl=queue.url, Entries=[{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies)])


def left_in(sqs: LocalSqs, url: str) -> int:
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    attributes = sqs.client.get_queue_attributes(QueueUrl=url, AttributeNames=list(names))["Attributes"]
    return sum(int(attributes[name]) for name in names)


class Recorder:
    """Keeps the bodies of each event, and answers what `answer` makes of the event."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any] = lambda event: None) -> None:
        self.answer = answer
        self.events: list[dict[str, Any]] = []
        self.contexts: list[Any] = []

    def __call__(self, event: dict[str, Any], context: Any) -> Any:
        self.events.append(event)
        self.contexts.append(context)
        return self.answer(event)

    def receives(self, body: str) -> int:
        return sum(record["body"] == body for event in self.events for record in event["Records"])


def failing(*bodies: str) -> Callable[[dict[str, Any]], Any]:
    return lambda event: {"batchItemFailures": [{"itemIdentifier": r["messageId"]} for r in event["Records"] if r["body"] in bodies]}


def test_the_event_and_the_context_are_those_of_lambda(sqs: LocalSqs, queue: LocalQueue) -> None:
    recorder = Recorder()
    attributes: Any = {
        "text": {"DataType": "String", "StringValue": "x"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\x01"},
    }
    with polling(sqs, queue, recorder):
        sqs.client.send_message(QueueUrl=queue.url, MessageBody="hello", MessageAttributes=attributes)
        until(lambda: len(recorder.events) == 1)
    (record,) = recorder.events[0]["Records"]
    assert record["messageAttributes"] == {
        "text": {"stringValue": "x", "stringListValues": [], "binaryListValues": [], "dataType": "String"},
        "bytes": {"binaryValue": "AAE=", "stringListValues": [], "binaryListValues": [], "dataType": "Binary"},
    }
    assert record["attributes"].keys() >= {
        "ApproximateReceiveCount", "SentTimestamp", "SenderId", "ApproximateFirstReceiveTimestamp",
    }  # fmt: skip
    assert record["attributes"]["ApproximateReceiveCount"] == "1"
    assert record["md5OfBody"] == hashlib.md5(b"hello").hexdigest()
    assert (record["eventSource"], record["eventSourceARN"], record["awsRegion"]) == ("aws:sqs", queue.arn, "us-east-1")
    assert record["messageId"]
    assert record["receiptHandle"]
    assert json.loads(json.dumps(recorder.events[0])) == recorder.events[0]
    context = recorder.contexts[0]
    assert (context.function_name, bool(context.aws_request_id)) == ("worker", True)
    assert 0 <= context.get_remaining_time_in_millis() <= 9000


def test_named_failures_come_back_and_the_rest_is_deleted(sqs: LocalSqs, queue: LocalQueue) -> None:
    recorder = Recorder(failing("bad"))
    send(sqs, queue, "good", "bad", "fine")
    with polling(sqs, queue, recorder):
        until(lambda: left_in(sqs, queue.dead_letter_url) == 1)
    assert [recorder.receives(body) for body in ("good", "bad", "fine")] == [1, 2, 1]
    assert left_in(sqs, queue.url) == 0


def test_a_handler_that_raises_fails_the_whole_batch(sqs: LocalSqs, queue: LocalQueue) -> None:
    def explode(event: dict[str, Any]) -> Any:
        if len(recorder.events) == 1:
            raise SystemExit("out of memory")

    recorder = Recorder(explode)
    send(sqs, queue, "one", "two")
    with polling(sqs, queue, recorder) as poller:
        until(lambda: poller.counts.get("deleted", 0) == 2)
    assert [recorder.receives(body) for body in ("one", "two")] == [2, 2]
    assert poller.counts["invocation_errors"] == 1


def test_an_unknown_identifier_fails_the_whole_batch(sqs: LocalSqs, queue: LocalQueue) -> None:
    recorder = Recorder(lambda event: {"batchItemFailures": [{"itemIdentifier": "nobody"}]})
    send(sqs, queue, "one", "two")
    with polling(sqs, queue, recorder):
        until(lambda: left_in(sqs, queue.dead_letter_url) == 2)


def test_no_more_invocations_run_at_once_than_allowed(sqs: LocalSqs, queue: LocalQueue) -> None:
    running, highest, lock = 0, 0, threading.Lock()
    full = threading.Barrier(3)

    def count(event: dict[str, Any]) -> None:
        nonlocal running, highest
        with lock:
            running += 1
            highest = max(highest, running)
        full.wait(60)
        with lock:
            running -= 1

    source = event_source(sqs.client, queue.url, batch_size=1, maximum_concurrency=3)
    poller = EventSourcePoller(sqs.client, [source], Recorder(count)).start()
    send(sqs, queue, *"abcdef")
    until(lambda: poller.counts.get("deleted", 0) == 6)
    assert poller.stop()
    assert highest == 3


def test_stopping_waits_for_the_invocation_that_runs_and_starts_no_other(sqs: LocalSqs, queue: LocalQueue) -> None:
    started, may_end = threading.Event(), threading.Event()

    def hold(event: dict[str, Any]) -> None:
        started.set()
        may_end.wait(60)

    source = event_source(sqs.client, queue.url, batch_size=1, maximum_concurrency=1)
    poller = EventSourcePoller(sqs.client, [source], Recorder(hold)).start()
    send(sqs, queue, "one", "two")
    assert started.wait(60)
    assert not poller.stop(timedelta(seconds=0.1))
    may_end.set()
    assert poller.stop()
    assert (poller.counts["deleted"], left_in(sqs, queue.url)) == (1, 1)


def test_an_sqs_that_goes_away_is_tried_again_until_it_is_back() -> None:
    recorder = Recorder()
    with LocalSqs() as server:
        queue, port = server.create_queue("work"), server.port
        client = local_sqs_client(server.endpoint_url)
        poller = EventSourcePoller(client, [event_source(client, queue.url, maximum_concurrency=1)], recorder).start()
        server.stop()
        until(lambda: poller.counts.get("receive_errors", 0) >= 2)
    with LocalSqs(port=port) as server:
        send(server, server.create_queue("work"), "late")
        until(lambda: poller.counts.get("deleted", 0) == 1)
        assert poller.stop()
    client.close()


def test_groups_of_a_fifo_queue_are_delivered_in_order_and_side_by_side(sqs: LocalSqs) -> None:
    queue = sqs.create_queue(f"{uuid4().hex}.fifo", visibility_timeout=timedelta(seconds=9))
    seen: list[tuple[str, str]] = []
    held = threading.Event()

    def hold_a(event: dict[str, Any]) -> None:
        for record in event["Records"]:
            seen.append((record["attributes"]["MessageGroupId"], record["body"]))
            if seen[-1] == ("a", "0"):
                held.wait(60)

    def send_to(group: str, *bodies: str) -> None:
        for body in bodies:
            sqs.client.send_message(QueueUrl=queue.url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=uuid4().hex)

    send_to("a", "0")
    source = event_source(sqs.client, queue.url, batch_size=2, maximum_concurrency=2)
    poller = EventSourcePoller(sqs.client, [source], Recorder(hold_a), timeout=timedelta(seconds=9)).start()
    until(lambda: seen == [("a", "0")])
    send_to("a", "1", "2")
    send_to("b", "0", "1", "2", "3")
    until(lambda: poller.counts.get("deleted", 0) == 4)
    assert seen[1:] == [("b", "0"), ("b", "1"), ("b", "2"), ("b", "3")]
    held.set()
    until(lambda: poller.counts.get("deleted", 0) == 7)
    assert poller.stop()
    assert seen[5:] == [("a", "1"), ("a", "2")]
