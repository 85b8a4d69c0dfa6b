"""What runs under chaos: a queue of every kind, and payloads that say how each run is to go. `RUNLANE_APP` of the processes."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from random import Random

from pydantic import BaseModel

from runlane.bootstrap import environment_lane
from runlane.domain.queue import Queue, Throttle
from runlane.domain.retry import Fixed, Retry
from runlane.domain.task import task
from runlane.runtime import Runlane
from runlane.services.context import Context, Release
from runlane.settings import read_settings
from tests.chaos.transport import UnreliableTransport

APP = "tests.chaos.catalog:runlane"
MAX_ATTEMPTS = 4

# Wakeups that are lost are made good soon, as the play is short.
free = Queue("free", default=True, dispatch_timeout="4s")
keyed = Queue("keyed", concurrency_limit=3, dispatch_timeout="4s")
shared = Queue("shared", total_limit=40, dispatch_timeout="4s")
narrow = Queue("narrow", concurrency_limit=1, total_limit=30, dispatch_timeout="4s")
paced = Queue("paced", throttle=Throttle(20, "1s", burst=5), dispatch_timeout="4s")
QUEUES = (free, keyed, shared, narrow, paced)
at_once = Retry(max_attempts=MAX_ATTEMPTS, backoff=Fixed("0s"))


class Job(BaseModel):
    """`seconds` of work; the first `fails` attempts raise, the first `releases` are not ready yet."""

    number: int
    key: str
    seconds: float = 0.0
    fails: int = 0
    releases: int = 0
    padding: str = ""


def perform(job: Job, ctx: Context) -> int | Release:
    # One write of one line, so that lines of several processes do not mix.
    with Path(os.environ["NOTES"], "starts").open("a") as starts:
        starts.write(f"{ctx.run_id} {ctx.attempt} {os.getpid()}\n")
    ends_at = time.monotonic() + job.seconds
    while (left := ends_at - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))
        ctx.check()
    if ctx.attempt <= job.releases:
        return ctx.release("200ms", reason="not ready")
    if ctx.failures < job.fails:
        raise RuntimeError("not yet")
    return job.number


@task("free", queue=free, concurrency_key=lambda job: job.key, retry=at_once)
def on_free(job: Job, ctx: Context) -> int | Release:
    return perform(job, ctx)


@task("keyed", queue=keyed, concurrency_key=lambda job: job.key, retry=at_once)
def on_keyed(job: Job, ctx: Context) -> int | Release:
    return perform(job, ctx)


@task("shared", queue=shared, concurrency_key=lambda job: job.key, retry=at_once)
def on_shared(job: Job, ctx: Context) -> int | Release:
    return perform(job, ctx)


@task("narrow", queue=narrow, concurrency_key=lambda job: job.key, retry=at_once)
def on_narrow(job: Job, ctx: Context) -> int | Release:
    return perform(job, ctx)


@task("paced", queue=paced, concurrency_key=lambda job: job.key, retry=at_once)
def on_paced(job: Job, ctx: Context) -> int | Release:
    return perform(job, ctx)


TASKS = (on_free, on_keyed, on_shared, on_narrow, on_paced)


def runlane() -> Runlane:
    """With odd seeds nothing follows inline: every run goes through the transport."""
    settings, seed = read_settings(), os.environ["CHAOS_SEED"]
    lane = environment_lane(QUEUES, settings)
    assert lane.transport is not None
    return Runlane(
        lane=replace(lane, transport=UnreliableTransport(lane.transport, Random(f"{seed} {os.getpid()}"))),
        queues=QUEUES,
        tasks=TASKS,
        environment=settings.environment,
        lease_duration=settings.lease_duration,
        continue_inline_for="0s" if int(seed) % 2 else "30s",
    )
