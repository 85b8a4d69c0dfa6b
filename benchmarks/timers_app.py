"""The application under measurement: runs that are due later, made so by their trigger, by a retry or by a release."""

from __future__ import annotations

from benchmarks.catalog import QUEUES
from runlane import Context, Release, Runlane, task
from runlane.bootstrap import environment_runlane


@task("late")
def late(number: int) -> None:
    return None


@task("again")
def again(seconds: float, ctx: Context) -> Release | None:
    return ctx.release(f"{seconds}s") if ctx.attempt == 1 else None


TASKS = (late, again)


def runlane() -> Runlane:
    return environment_runlane(queues=QUEUES, tasks=TASKS)
