"""Entries of one SQS queue, cut into requests that SQS accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, NamedTuple
from uuid import uuid4

from runlane.adapters.sqs.bindings import Fifo
from runlane.adapters.sqs.groups import fair_group_id, fifo_group_id
from runlane.ports.stores import Wakeup

MAX_ENTRIES = 10
MAX_BATCH_BYTES = 1024 * 1024
"""The sum of a request's message lengths; bodies only, as no attributes are sent."""
MAX_DELAY_SECONDS = 900


class Entry(NamedTuple):
    """One message, its size in bytes, and its wakeup's place in the input; `due_at` on the monotonic clock, if it is to be delayed."""

    position: int
    size: int
    request: dict[str, Any]
    due_at: float | None = None

    def request_at(self, now: float) -> dict[str, Any]:
        """The request as it is sent now: what thousands of wakeups before it have taken is not added to its delay."""
        if self.due_at is None:
            return self.request
        return {**self.request, "DelaySeconds": delay_seconds(timedelta(seconds=self.due_at - now))}

    @property
    def group(self) -> str:
        return str(self.request["MessageGroupId"])


def entry(position: int, environment: str, wakeup: Wakeup, body: str) -> Entry:
    """The entry of an ASCII `body`. The delay is always given: without one the queue's own default would hold."""
    request: dict[str, Any] = {"Id": str(position), "MessageBody": body, "DelaySeconds": delay_seconds(wakeup.delay)}
    if (group := fair_group_id(environment, wakeup)) is not None:
        request["MessageGroupId"] = group
    return Entry(position, len(body), request, monotonic() + wakeup.delay.total_seconds() if wakeup.delay else None)


def fifo_entry(position: int, environment: str, wakeup: Wakeup, body: str, fifo: Fifo) -> Entry:
    """The entry for a FIFO queue, which takes no delay for a single message.

    The deduplication id is this publish's own: SQS drops the second copy when a request is tried again, and never the wakeup of a
    later dispatch, though it names the same run.
    """
    request: dict[str, Any] = {
        "Id": str(position),
        "MessageBody": body,
        "MessageGroupId": fifo_group_id(environment, wakeup, fifo.message_group),
        "MessageDeduplicationId": f"runlane_{uuid4().hex}",
    }
    return Entry(position, len(body), request)


def delay_seconds(delay: timedelta) -> int:
    """Whole seconds, rounded down and kept within what SQS takes: a wakeup may come early, never late."""
    return max(0, min(delay // timedelta(seconds=1), MAX_DELAY_SECONDS))


def batches(entries: Iterable[Entry]) -> Iterator[tuple[Entry, ...]]:
    """Cut in order, at ten entries and at 1 MiB."""
    batch: list[Entry] = []
    size = 0
    for item in entries:
        if batch and (len(batch) == MAX_ENTRIES or size + item.size > MAX_BATCH_BYTES):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(item)
        size += item.size
    if batch:
        yield tuple(batch)


def lanes(entries: Sequence[Entry], most: int) -> list[list[Entry]]:
    """Split entries of a FIFO queue for sending side by side, no more than their number is worth: each group in one lane, in order."""
    count = min(most, -(-len(entries) // MAX_ENTRIES))
    made: list[list[Entry]] = [[] for _ in range(count)]
    lane_of: dict[str, list[Entry]] = {}
    for item in entries:
        lane_of.setdefault(item.group, made[len(lane_of) % count]).append(item)
    return [lane for lane in made if lane]
