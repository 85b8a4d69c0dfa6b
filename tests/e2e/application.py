"""What the deployed functions run: packed as `app.end_to_end`, with queues of its own."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from pydantic import BaseModel

from runlane import Context, Fixed, Queue, Retry, Runlane, task
from runlane.bootstrap import environment_runlane, runtime

RELEASE = 1
"""Written anew for the second deploy."""
main = Queue("main", default=True)
single = Queue("single", concurrency_limit=1)
ordered = Queue("ordered")
"""Bound to FIFO."""
at_once = Retry(max_attempts=3, backoff=Fixed("0s"))


class Work(BaseModel):
    number: int = 0
    seconds: float = 0


def noted(work: Work, ctx: Context) -> dict[str, Any]:
    """Who did it, when, and by which release's code."""
    started_at = time.time()
    time.sleep(work.seconds)
    return {"number": work.number, "pid": os.getpid(), "started_at": started_at, "ended_at": time.time(), "release": RELEASE}


@task("e2e.plain", retry=at_once)
def plain(work: Work, ctx: Context) -> dict[str, Any]:
    return noted(work, ctx)


@task("e2e.one_a_key", queue=single, concurrency_key=lambda work: f"key{work.number % 3}", retry=at_once)
def one_a_key(work: Work, ctx: Context) -> dict[str, Any]:
    return noted(work, ctx)


@task("e2e.flaky", retry=Retry(max_attempts=3, backoff=Fixed("1s")))
def flaky(work: Work, ctx: Context) -> int:
    if ctx.attempt < 3:
        raise RuntimeError("not yet")
    return ctx.attempt


@task("e2e.flaky_in_order", queue=ordered, concurrency_key=lambda work: "key", retry=Retry(max_attempts=2, backoff=Fixed("1s")))
def flaky_in_order(work: Work, ctx: Context) -> int:
    if ctx.attempt < 2:
        raise RuntimeError("not yet")
    return ctx.attempt


@task("e2e.mortal", retry=at_once)
def mortal(work: Work, ctx: Context) -> int:
    """Takes its worker with it, the first time."""
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.attempt


@task("e2e.endless", retry=Retry(max_attempts=1))
def endless(work: Work) -> None:
    """Takes no notice of its deadline."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        time.sleep(0.05)


@task("e2e.fan")
def fan(work: Work) -> list[str]:
    """Triggers from within the function."""
    return [str(runtime().trigger(plain, Work(number=number)).run.run_id) for number in range(work.number)]


TASKS = (plain, one_a_key, flaky, flaky_in_order, mortal, endless, fan)


def runlane() -> Runlane:
    return environment_runlane(queues=[main, single, ordered], tasks=TASKS)
