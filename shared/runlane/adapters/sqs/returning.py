"""Records of FIFO queues that a Lambda invocation returns: a group stands still until they are visible again, so that is hastened."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from runlane.adapters.sqs.addresses import address_of
from runlane.adapters.sqs.bindings import SqsBinding, physical_name
from runlane.adapters.sqs.client import sqs_client
from runlane.adapters.sqs.sources import SqsSource
from runlane.ports.transport import attributes_of, text_of

LONGEST = 900
READ_TIMEOUT = 1.0
"""Seconds; it is the end of an invocation, and the queue's own visibility timeout is there if it fails."""

Record = Mapping[str, Any]


class SqsReturns:
    """`bindings` as the transport has them; standard queues are none of its business."""

    def __init__(
        self, bindings: Sequence[SqsBinding], endpoint_url: str | None = None, make_client: Callable[[float], Any] | None = None
    ) -> None:
        make = make_client or (lambda seconds: sqs_client(endpoint_url, read_timeout=READ_TIMEOUT))
        self._sources = {physical_name(one): SqsSource(address_of(one), make) for one in bindings if one.fifo is not None}

    def __call__(self, records: Sequence[Record], returned: Collection[str]) -> None:
        """Make visible again what was returned of these records, as Lambda shows them; raises `UnavailableError`."""
        for name, source in self._sources.items():
            mine = [record for record in records if text_of(record, "eventSourceARN").rpartition(":")[2] == name]
            for seconds, receipts in _delays(mine, returned).items():
                source.hide(receipts, seconds)


def return_delays(receives: int) -> Iterator[timedelta]:
    """For how long the first of a group is hidden after each of its receives, if none gets on with the group."""
    return (timedelta(seconds=_delay(count)) for count in range(1, receives + 1))


def _delays(records: Sequence[Record], returned: Collection[str]) -> dict[int, list[str]]:
    """Receipts by the seconds until they shall be visible.

    The first of a group waits longer each time, unless the invocation got on with the group; SQS keeps the others behind it.
    """
    delays: dict[int, list[str]] = {}
    moved: set[str] = set()
    held: set[str] = set()
    for record in records:
        attributes = attributes_of(record)
        group = text_of(attributes, "MessageGroupId")
        if record["messageId"] not in returned:
            moved.add(group)
            continue
        is_stuck = group not in moved and group not in held
        held.add(group)
        if receipt := text_of(record, "receiptHandle"):
            delays.setdefault(_backoff(attributes) if is_stuck else 0, []).append(receipt)
    return delays


def _backoff(attributes: Mapping[str, object]) -> int:
    # What is no count is a first receive. More digits than any count has are cut: it is more than enough without them.
    found = re.match("[0-9]{1,9}", text_of(attributes, "ApproximateReceiveCount"))
    return _delay(max(1, int(found[0])) if found else 1)


def _delay(received: int) -> int:
    return min(LONGEST, 1 << min(received - 1, 10))
