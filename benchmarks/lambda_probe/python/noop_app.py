"""An application of one task, as the benchmarks' catalog has it."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel

from runlane import Queue, Runlane, task
from runlane.bootstrap import environment_runlane


class Payload(BaseModel):
    number: int
    who: str = "tenant-17"
    what: str = "noop"
    n: int = 3


@task("noop")
def noop(payload: Payload) -> None:
    pass


@cache
def runlane() -> Runlane:
    return environment_runlane(queues=[Queue("main", default=True)], tasks=[noop])
