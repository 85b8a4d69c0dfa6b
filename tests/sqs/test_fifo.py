"""FIFO queues: what two imitations of SQS do with what we publish, and our own logic where they could not tell."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from runlane.adapters.sqs.batches import fifo_entry, lanes
from runlane.adapters.sqs.bindings import Fifo, MessageGroup, sqs_queue, sqs_timers
from runlane.adapters.sqs.client import sqs_client
from runlane.adapters.sqs.envelope import parse_wakeup
from runlane.adapters.sqs.groups import fair_group_id, fifo_group_id, group_id
from runlane.adapters.sqs.transport import SqsTransport
from runlane.ports.stores import PublishResult, Wakeup
from tests.sqs.misbehaving import Behaviour, Request, misbehaving, refuse, split, succeed
from tests.sqs.wakeups import EMAILS, wakeup, wakeups

pytestmark = pytest.mark.sqs


class Place:
    """A FIFO queue and a timers queue, and the transport to them."""

    def __init__(self, sqs: Any, endpoint: str | None, group: MessageGroup) -> None:
        name = uuid.uuid4().hex
        self._sqs = sqs
        self.fifo: str = sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        self.timers: str = sqs.create_queue(QueueName=f"{name}-timers")["QueueUrl"]
        self.transport = SqsTransport(
            [sqs_queue(EMAILS, queue_url=self.fifo, fifo=Fifo(group))],
            "production",
            endpoint_url=endpoint,
            timers=sqs_timers(queue_url=self.timers),
        )

    def publish(self, *sent: Wakeup) -> None:
        assert [result.error for result in self.transport.publish(sent)] == [None] * len(sent)

    def receive(self, url: str, *, delete: bool = True) -> list[dict[str, Any]]:
        """Until nothing is handed out any more; with `delete` that is all there is."""
        found: list[dict[str, Any]] = []
        while messages := self._sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"]).get("Messages"):
            found += messages
            for message in messages if delete else ():
                self._sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return found

    def make_visible(self, message: dict[str, Any]) -> None:
        self._sqs.change_message_visibility(QueueUrl=self.fifo, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)


@pytest.fixture
def place(sqs: Any, endpoint: str | None) -> Iterator[Place]:
    made = Place(sqs, endpoint, "key")
    yield made
    made.transport.close()


def run_ids(messages: list[dict[str, Any]]) -> list[str]:
    return [parse_wakeup(message["Body"], "production").run_id for message in messages]


def test_each_group_comes_in_the_order_in_which_it_was_published(place: Place) -> None:
    sent = [wakeup(concurrency_key=str(number % 3)) for number in range(45)]
    place.publish(*sent)
    messages = place.receive(place.fifo)
    assert len(messages) == 45
    for key in "012":
        mine = [one.run_id for one in sent if one.concurrency_key == key]
        assert [run_id for run_id in run_ids(messages) if run_id in mine] == mine
    assert len({message["Attributes"]["MessageGroupId"] for message in messages}) == 3


def test_a_group_is_held_while_one_of_it_is_under_way_and_others_are_not(place: Place) -> None:
    first, behind = wakeup(concurrency_key="a"), wakeup(concurrency_key="a")
    place.publish(first)
    (held,) = place.receive(place.fifo, delete=False)
    place.publish(behind, other := wakeup(concurrency_key="b"))
    assert run_ids(place.receive(place.fifo)) == [other.run_id]
    place.make_visible(held)
    assert run_ids(place.receive(place.fifo)) == [first.run_id, behind.run_id]


def test_a_later_dispatch_of_the_same_run_is_no_duplicate(place: Place) -> None:
    one = wakeup(concurrency_key="a")
    place.publish(one)
    place.publish(one)
    assert run_ids(place.receive(place.fifo)) == [one.run_id, one.run_id]


def test_the_second_copy_of_a_request_is_dropped(place: Place, sqs: Any) -> None:
    """As when boto3 tries again because an answer was lost."""
    request = fifo_entry(0, "production", wakeup(), "{}", Fifo()).request
    for _ in range(2):
        sqs.send_message_batch(QueueUrl=place.fifo, Entries=[request])
    assert len(place.receive(place.fifo)) == 1


def test_what_is_due_later_goes_through_the_timers_queue(place: Place) -> None:
    now = wakeup(concurrency_key="a")
    soon = wakeup(concurrency_key="a", delay=timedelta(milliseconds=400), hint=True)
    late = wakeup(concurrency_key="a", delay=timedelta(minutes=2), hint=True)
    place.publish(soon, now, late)
    assert run_ids(place.receive(place.fifo)) == [now.run_id]
    assert run_ids(place.receive(place.timers)) == [soon.run_id], "the other one is held back"


def test_sqs_refuses_a_delay_and_a_missing_deduplication_id(place: Place, sqs: Any) -> None:
    """Why there is a timers queue, and why every publish has an id."""
    request = fifo_entry(0, "production", wakeup(), "{}", Fifo()).request
    body = {"QueueUrl": place.fifo, "MessageBody": "{}", "MessageGroupId": request["MessageGroupId"]}
    with pytest.raises(ClientError):
        sqs.send_message(**body)
    with pytest.raises(ClientError):
        sqs.send_message(**body, MessageDeduplicationId="x", DelaySeconds=5)


def test_a_large_publish_keeps_one_group_in_order(sqs: Any, endpoint: str | None) -> None:
    place = Place(sqs, endpoint, "queue")
    sent = wakeups(25)
    place.publish(*sent)
    assert run_ids(place.receive(place.fifo)) == [one.run_id for one in sent]
    place.transport.close()


def test_the_message_group_is_the_run_s_the_queue_s_or_the_key_s() -> None:
    keyed, plain = wakeup(tenant="acme", concurrency_key="k"), wakeup(tenant="acme")
    assert fifo_group_id("production", keyed, "run") == group_id("run", "production", keyed.run_id)
    assert (
        fifo_group_id("production", keyed, "queue")
        == fifo_group_id("production", plain, "queue")
        == group_id("queue", "production", "emails")
    )
    assert fifo_group_id("production", keyed, "key") == fair_group_id("production", keyed)
    assert fifo_group_id("production", plain, "key") == group_id("run", "production", plain.run_id), "a run without a key stands alone"
    assert fifo_group_id("staging", keyed, "run") != fifo_group_id("production", keyed, "run")


def test_lanes_keep_each_group_together_and_are_no_more_than_their_requests_are_worth() -> None:
    entries = [fifo_entry(n, "production", wakeup(concurrency_key=str(n % 7)), "{}", Fifo("key")) for n in range(35)]
    for most in (1, 3, 8):
        made = lanes(entries, most)
        assert len(made) == min(most, 4)
        assert sorted(one.position for lane in made for one in lane) == list(range(35))
        homes = {one.group: number for number, lane in enumerate(made) for one in lane}
        assert all(homes[one.group] == number for number, lane in enumerate(made) for one in lane)
        assert all([one.position for one in lane] == sorted(one.position for one in lane) for lane in made)
    assert [len(lane) for lane in lanes(entries[:9], 8)] == [9]
    assert lanes([], 8) == []


def publish_to(behaviour: Behaviour, sent: list[Wakeup], group: MessageGroup) -> tuple[list[Request], tuple[PublishResult, ...]]:
    with misbehaving(behaviour) as sqs:
        transport = SqsTransport(
            [sqs_queue(EMAILS, queue_url=f"{sqs.url}/000000000000/emails.fifo", fifo=Fifo(group))],
            "production",
            client_factory=partial(sqs_client, sqs.url),
            timers=sqs_timers(queue_name="timers"),
        )
        try:
            return sqs.requests, transport.publish(sent)
        finally:
            transport.close()


def test_what_follows_a_wakeup_that_will_be_sent_again_waits_for_it() -> None:
    """Else the tick would publish the first ten behind the others of their group."""

    def first_request_fails(request: Request) -> Any:
        return refuse(400, "RequestThrottled")(request) if request["Entries"][0]["Id"] == "0" else succeed(request)

    requests, results = publish_to(first_request_fails, wakeups(25), "queue")
    assert [(result.published, result.retryable) for result in results] == [(False, True)] * 25
    assert {request["Entries"][0]["Id"] for request in requests} == {"0"}


def test_one_failed_entry_holds_back_its_own_group_only() -> None:
    sent = [wakeup(concurrency_key=str(number % 3)) for number in range(60)]
    fault = {"Code": "InternalError", "SenderFault": False, "Message": "no"}

    def second_fails(request: Request) -> Any:
        return split(request, {place: fault for place, entry in enumerate(request["Entries"]) if entry["Id"] == "3"})

    _, results = publish_to(second_fails, sent, "key")
    assert [result.published for result in results[::3]] == [True, False] + [True] * 8 + [False] * 10, "the first request was under way"
    assert all(result.published for key in (1, 2) for result in results[key::3])


def test_an_entry_that_sqs_will_never_take_holds_nobody_back() -> None:
    fault = {"Code": "InvalidParameterValue", "SenderFault": True, "Message": "no"}

    def first_fails(request: Request) -> Any:
        return split(request, {place: fault for place, entry in enumerate(request["Entries"]) if entry["Id"] == "0"})

    _, results = publish_to(first_fails, wakeups(15), "queue")
    assert [result.published for result in results] == [False] + [True] * 14
    assert not results[0].retryable
