"""Entries of one SQS queue, cut into requests that SQS accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from runlane.adapters.sqs.groups import fair_group_id
from runlane.ports.stores import Wakeup

MAX_ENTRIES = 10
MAX_BATCH_BYTES = 1024 * 1024
"""The sum of a request's message lengths; bodies only, as no attributes are sent."""
MAX_DELAY_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, its size in bytes, and its wakeup's place in the input."""

    position: int
    size: int
    request: dict[str, Any]


def entry(position: int, environment: str, wakeup: Wakeup, body: str) -> Entry:
    """The entry of an ASCII `body`. The delay is always given: without one the queue's own default would hold."""
    request: dict[str, Any] = {"Id": str(position), "MessageBody": body, "DelaySeconds": delay_seconds(wakeup.delay)}
    if (group := fair_group_id(environment, wakeup)) is not None:
        request["MessageGroupId"] = group
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
