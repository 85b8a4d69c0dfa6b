"""The work that is measured: a no-op with a validated payload."""

from __future__ import annotations

from collections import deque
from time import sleep, time_ns

from pydantic import BaseModel

from runlane import Queue, Throttle, task

MAIN = Queue("main", default=True, dispatch_window=1_000_000)
"""The window is larger than any number of runs here: all are dispatched when they are triggered."""
LIMIT_1 = Queue("limit-1", concurrency_limit=1)
LIMIT_10 = Queue("limit-10", concurrency_limit=10)
SHARED = Queue("shared", total_limit=8)
WEIGHTED = Queue("weighted", dispatch_window=100)
WIDE = Queue("wide", concurrency_limit=1_000_000, dispatch_window=1_000_000)
THROTTLED = Queue("throttled", throttle=Throttle(1_000_000, "1s", burst=100_000), dispatch_window=1_000_000)
"""Far above any rate here."""
FIFTY_A_SECOND = Queue("fifty-a-second", throttle=Throttle(50, "1s", burst=10))
QUEUES = (MAIN, LIMIT_1, LIMIT_10, SHARED, WEIGHTED, WIDE, THROTTLED, FIFTY_A_SECOND)

handled: list[int] = []
"""Numbers of the payloads that the handlers of this process were given."""


waits: deque[float] = deque()
"""Seconds from trigger to handler, of the runs whose payload's number is when they were triggered, in nanoseconds."""


class Payload(BaseModel):
    number: int
    who: str = "tenant-17"
    what: str = "noop"
    n: int = 3


@task("noop")
def noop(payload: Payload) -> None:
    handled.append(payload.number)


@task("nap", queue=SHARED)
def nap(payload: Payload) -> None:
    sleep(0.01)


@task("waited")
def waited(payload: Payload) -> None:
    waits.append((time_ns() - payload.number) / 1e9)


TASKS = (noop, nap, waited)
