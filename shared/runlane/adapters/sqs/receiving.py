"""What is asked of SQS about received messages; each function raises what boto3 raises."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

LONGEST_WAIT = 20
"""Seconds of a long poll."""


class SqsReceiver(Protocol):
    """What is used of boto3's client; parameters as in the SQS API."""

    def receive_message(self, **request: Any) -> Any: ...

    def delete_message_batch(self, **request: Any) -> Any: ...

    def change_message_visibility_batch(self, **request: Any) -> Any: ...

    def get_queue_attributes(self, **request: Any) -> Any: ...


def receive(client: SqsReceiver, url: str, limit: int, *, wait_for: float, hidden_for: float | None = None) -> Sequence[Mapping[str, Any]]:
    """Up to `limit` messages with all their attributes; whole seconds of waiting, and of visibility unless the queue's is to be taken."""
    visibility = {} if hidden_for is None else {"VisibilityTimeout": max(1, round(hidden_for))}
    answer = client.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=limit,
        WaitTimeSeconds=min(LONGEST_WAIT, int(wait_for)),
        MessageSystemAttributeNames=["All"],
        MessageAttributeNames=["All"],
        **visibility,
    )
    found: Sequence[Mapping[str, Any]] = answer.get("Messages", [])
    return found


def delete(client: SqsReceiver, url: str, receipts: Collection[str]) -> list[Mapping[str, Any]]:
    """At most ten; the entries that SQS refused."""
    entries = [{"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(receipts)]
    return list(client.delete_message_batch(QueueUrl=url, Entries=entries).get("Failed", []))


def hide(client: SqsReceiver, url: str, receipts: Collection[str], seconds: float) -> None:
    """At most ten. A refusal is a message that is deleted, or visible again: nothing is to be done about either."""
    entries = [
        {"Id": str(number), "ReceiptHandle": receipt, "VisibilityTimeout": round(seconds)} for number, receipt in enumerate(receipts)
    ]
    client.change_message_visibility_batch(QueueUrl=url, Entries=entries)


def queue_arn(client: SqsReceiver, url: str) -> str:
    return str(client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def sqs_record(message: Mapping[str, Any], queue_arn: str) -> dict[str, Any]:
    """A received message as the event of an SQS mapping shows it."""
    record: dict[str, Any] = {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": dict(message.get("Attributes", {})),
        "messageAttributes": {name: _attribute(value) for name, value in message.get("MessageAttributes", {}).items()},
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": queue_arn,
        "awsRegion": queue_arn.split(":")[3],
    }
    if "MD5OfMessageAttributes" in message:
        record["md5OfMessageAttributes"] = message["MD5OfMessageAttributes"]
    return record


def _attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    attribute: dict[str, Any] = {"stringListValues": [], "binaryListValues": [], "dataType": value["DataType"]}
    if "StringValue" in value:
        attribute["stringValue"] = value["StringValue"]
    if "BinaryValue" in value:
        attribute["binaryValue"] = base64.b64encode(value["BinaryValue"]).decode()
    return attribute
