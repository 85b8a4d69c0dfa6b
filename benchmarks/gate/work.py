"""The work whose cost is kept: runs triggered in four ways, and worked off in the batches that they suit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType

from benchmarks.catalog import LIMIT_1, LIMIT_10, MAIN, THROTTLED, Payload, noop
from benchmarks.figure import require
from benchmarks.lane import MemoryTransport, make_runlane, sqs_events
from benchmarks.work_check import require_each_once
from runlane import Queue
from runlane.services.trigger import Item


class Side:
    """A runtime and the wakeups that it published; a delivery does what its event says and no more."""

    def __init__(self, dsn: str) -> None:
        self.runs = 0
        self._dsn = dsn
        self._transport = MemoryTransport()
        self._runlane = make_runlane(dsn, self._transport, continue_inline_for="0s")

    def __enter__(self) -> Side:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with closing(self._runlane):
            if error is None:
                require_each_once(self._dsn, self.runs)

    def trigger(self, count: int) -> None:
        for number in range(count):
            self._runlane.trigger(noop, Payload(number=number))
        self.runs += count

    def trigger_many(self, count: int, queue: Queue, keys: int) -> None:
        items = [Item(Payload(number=number), concurrency_key=f"key-{number % keys}" if keys else None) for number in range(count)]
        self._runlane.trigger_many(noop, items, queue=queue)
        self.runs += count

    def deliver(self, batch: int) -> None:
        """Everything that is published, and what follows from it."""
        while self._transport.bodies:
            (event,) = sqs_events(self._transport.take(batch), batch)
            require(not self._runlane.deliver_sqs(event)["batchItemFailures"], "a message failed")


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    runs: int
    do: Callable[[Side], None]


def _pair(name: str, runs: int, trigger: Callable[[Side], None], batch: int) -> tuple[Step, Step]:
    return Step(f"trigger {name}", runs, trigger), Step(f"claim and settle {name}", runs, lambda side: side.deliver(batch))


STEPS = (
    *_pair("one by one, batches of 10", 100, lambda side: side.trigger(100), 10),
    *_pair("many, batches of 100", 500, lambda side: side.trigger_many(500, MAIN, 0), 100),
    *_pair("one partition of limit 10", 200, lambda side: side.trigger_many(200, LIMIT_10, 1), 10),
    *_pair("100 partitions of limit 1", 500, lambda side: side.trigger_many(500, LIMIT_1, 100), 10),
    *_pair("throttled", 200, lambda side: side.trigger_many(200, THROTTLED, 0), 10),
)
"""Each leaves nothing behind for the next pair."""
