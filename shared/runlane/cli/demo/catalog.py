"""What the demo runs: three queues and three tasks whose payloads say how each run is to go."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from pydantic import BaseModel

from runlane.bootstrap import environment_runlane
from runlane.domain.queue import Queue
from runlane.domain.retry import Fixed, Retry
from runlane.domain.task import task
from runlane.runtime import Runlane
from runlane.services.context import Context

APP = "runlane.cli.demo.catalog:runlane"
LOOK_EVERY = 0.05
"""Seconds of work between two looks at cancellation and deadline."""

# Wakeups that a killed worker had received are given back soon, as the demo is short.
invoice_sync = Queue("invoice_sync", concurrency_limit=1, dispatch_timeout="3s")
exports = Queue("exports", total_limit=8, dispatch_timeout="3s")
mail = Queue("mail", default=True, dispatch_timeout="3s")

retry = Retry(max_attempts=3, backoff=Fixed("200ms"))


class Job(BaseModel):
    """`seconds` of work; the first `fails` attempts raise; the first `releases` attempts are not ready yet."""

    customer: str
    seconds: float = 0.003
    fails: int = 0
    releases: int = 0


class ProviderDown(Exception):
    """What a provider's client raises."""


def perform(job: Job, ctx: Context) -> Any:
    ends_at = time.monotonic() + job.seconds
    while (left := ends_at - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_EVERY))
        ctx.check()
    if ctx.attempt <= job.releases:
        return ctx.release("300ms", reason="the export is not ready")
    if ctx.failures < job.fails:
        raise ProviderDown("503 Service Unavailable")
    return {"customer": job.customer}


@task("demo.sync_invoices", queue=invoice_sync, concurrency_key=lambda job: job.customer, retry=retry)
def sync_invoices(job: Job, ctx: Context) -> Any:
    return perform(job, ctx)


@task("demo.export", queue=exports, concurrency_key=lambda job: job.customer, retry=retry)
def export(job: Job, ctx: Context) -> Any:
    return perform(job, ctx)


@task("demo.send_email", queue=mail, retry=retry)
def send_email(job: Job, ctx: Context) -> Any:
    return perform(job, ctx)


@cache
def runlane() -> Runlane:
    return environment_runlane(queues=[invoice_sync, exports, mail], tasks=[sync_invoices, export, send_email])
