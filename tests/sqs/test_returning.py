"""When records of a FIFO queue that an invocation returned are visible again."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.adapters.sqs.bindings import Fifo, sqs_queue
from runlane.adapters.sqs.returning import SqsReturns
from runlane.domain.errors import UnavailableError
from tests.sqs.wakeups import EMAILS, REPORTS

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/emails.fifo"
ARN = "arn:aws:sqs:eu-west-1:123456789012:emails.fifo"


class Client:
    def __init__(self, trouble: Exception | None = None) -> None:
        self.hidden: dict[str, int] = {}
        self.urls: set[str] = set()
        self._trouble = trouble

    def change_message_visibility_batch(self, **request: Any) -> Any:
        if self._trouble is not None:
            raise self._trouble
        self.urls.add(request["QueueUrl"])
        self.hidden.update({entry["ReceiptHandle"]: entry["VisibilityTimeout"] for entry in request["Entries"]})
        return {}


def record(message_id: str, group: str, received: int = 1, arn: str = ARN) -> dict[str, Any]:
    attributes = {"MessageGroupId": group, "ApproximateReceiveCount": str(received)}
    return {"messageId": message_id, "receiptHandle": message_id, "eventSourceARN": arn, "attributes": attributes}


def hidden(records: list[dict[str, Any]], *returned: str) -> dict[str, int]:
    client = Client()
    bindings = [sqs_queue(EMAILS, queue_url=URL, fifo=Fifo()), sqs_queue(REPORTS, queue_name="reports")]
    SqsReturns(bindings, make_client=lambda seconds: client)(records, returned)
    assert client.urls <= {URL}
    return client.hidden


@pytest.mark.parametrize(("received", "seconds"), [(1, 1), (2, 2), (5, 16), (10, 512), (11, 900), (5000, 900)])
def test_a_group_that_does_not_get_on_waits_longer_each_time(received: int, seconds: int) -> None:
    records = [record("m1", "a", received), record("m2", "a", received)]
    assert hidden(records, "m1", "m2") == {"m1": seconds, "m2": 0}, "what stands behind the first is held by it"


@pytest.mark.parametrize(
    "attributes",
    [None, [], "x", {}, *({"ApproximateReceiveCount": count} for count in (None, "x", "", "0", "-5", "1.5", 10**5000, ["2"]))],
    ids=lambda value: ascii(value)[:40] if not isinstance(value, dict) or 10**5000 not in value.values() else "huge",
)
def test_odd_attributes_are_a_first_receive(attributes: Any) -> None:
    assert hidden([{**record("m1", "a"), "attributes": attributes}], "m1") == {"m1": 1}


def test_a_count_without_end_is_as_long_as_any() -> None:
    odd = record("m1", "a")
    odd["attributes"]["ApproximateReceiveCount"] = "9" * 5000
    assert hidden([odd], "m1") == {"m1": 900}


def test_a_record_that_cannot_be_named_leaves_the_others_to_be_made_visible() -> None:
    odd: dict[str, Any] = {"messageId": "m1", "eventSourceARN": ARN, "receiptHandle": None}
    assert hidden([odd, record("m2", "b"), {**record("m3", "c"), "eventSourceARN": 7}], "m1", "m2", "m3") == {"m2": 1}


def test_a_group_that_got_on_is_visible_at_once_and_others_are_judged_by_themselves() -> None:
    records = [record("m1", "a", 7), record("m2", "b", 3), record("m3", "a", 7), record("m4", "a", 7), record("m5", "c")]
    assert hidden(records, "m2", "m3", "m4") == {"m2": 4, "m3": 0, "m4": 0}


def test_standard_queues_keep_their_visibility_timeout() -> None:
    assert hidden([record("m1", "fair", arn="arn:aws:sqs:eu-west-1:123456789012:reports")], "m1") == {}


def test_an_sqs_that_does_not_answer_is_unavailable() -> None:
    returns = SqsReturns([sqs_queue(EMAILS, queue_url=URL, fifo=Fifo())], make_client=lambda seconds: Client(OSError("no")))
    with pytest.raises(UnavailableError):
        returns([record("m1", "a")], ["m1"])
