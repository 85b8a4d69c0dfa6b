"""Tasks that tests steer from outside: they note what they do in a file, and wait for files to appear. `RUNLANE_APP` of the processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from runlane.bootstrap import environment_runlane
from runlane.domain.queue import Queue
from runlane.domain.retry import Fixed, Retry
from runlane.domain.task import task
from runlane.runtime import Runlane
from runlane.services.context import Context, Release

main = Queue("main", default=True)
single = Queue("single", concurrency_limit=1)
ordered = Queue("ordered")
at_once = Retry(max_attempts=3, backoff=Fixed("0s"))


def folder() -> Path:
    return Path(os.environ["NOTES"])


def note(what: str, number: int, attempt: int) -> None:
    """One line: what, the run's number, the attempt, who, and when on a clock that all processes share."""
    with (folder() / "notes").open("a") as notes:
        notes.write(f"{what} {number} {attempt} {os.getpid()} {time.monotonic()}\n")


@task("noop")
def noop(number: int) -> int:
    return number


@task("noted")
def noted(number: int, ctx: Context) -> int:
    note("start", number, ctx.attempt)
    note("end", number, ctx.attempt)
    return number


@task("held", queue=single, retry=at_once)
def held(number: int, ctx: Context) -> str:
    """Runs until the file `number-attempt` is there."""
    note("start", number, ctx.attempt)
    gate = folder() / f"{number}-{ctx.attempt}"
    while not gate.exists():
        time.sleep(0.01)
    note("end", number, ctx.attempt)
    return f"attempt {ctx.attempt}"


@task("poison", retry=Retry(max_attempts=2, backoff=Fixed("0s")))
def poison(number: int, ctx: Context) -> None:
    note("start", number, ctx.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@task("deaf", queue=single, retry=at_once, max_attempt_duration="300ms")
def deaf(number: int, ctx: Context) -> str:
    """Ignores its deadline for as long as its process lives, the first time."""
    note("start", number, ctx.attempt)
    while ctx.attempt == 1:
        note("alive", number, ctx.attempt)
        time.sleep(0.005)
    return "heard"


@task("entry", queue=ordered, concurrency_key=lambda number: str(number // 100), retry=Retry(max_attempts=9, backoff=Fixed("200ms")))
def entry(number: int, ctx: Context) -> int:
    """One of a hundred of its group. At their first attempts 3 and 103 fail, and 5 kills its process; 50 waits for its file."""
    note("start", number, ctx.attempt)
    if number == 5 and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number in (3, 103) and ctx.attempt == 1:
        raise RuntimeError("not yet")
    while number == 50 and not (folder() / f"50-{ctx.attempt}").exists():
        time.sleep(0.01)
    return number


@task("attentive", retry=at_once)
def attentive(number: int, ctx: Context) -> None:
    """Runs until the file `number-attempt` is there, or until it may not go on."""
    note("start", number, ctx.attempt)
    while not (folder() / f"{number}-{ctx.attempt}").exists():
        ctx.check()
        time.sleep(0.01)
    note("end", number, ctx.attempt)


@task("dozing")
def dozing(milliseconds: int, ctx: Context) -> Release | None:
    return ctx.release(f"{milliseconds}ms") if ctx.attempt == 1 else None


def runlane() -> Runlane:
    return environment_runlane(queues=[main, single, ordered], tasks=[noop, noted, held, poison, deaf, entry, attentive, dozing])
