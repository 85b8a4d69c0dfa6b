"""A polling worker under measurement: a line of JSON for every attempt that starts, until its input is closed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.catalog import QUEUES
from benchmarks.lane import ENVIRONMENT
from runlane import Lane, Runlane, task
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.services.payload import AnyTask


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


@task("stamp")
def stamp(number: int) -> None:
    # Of all processes of the machine.
    say(number=number, at=time.monotonic())


def make(dsn: str, tasks: Sequence[AnyTask] = (stamp,)) -> Runlane:
    """A lane without a transport: runs are found in Postgres, or not at all."""
    return Runlane(lane=Lane(PostgresStorage(dsn), None), queues=QUEUES, tasks=tasks, environment=ENVIRONMENT)


def poll(runlane: Runlane) -> None:
    """Until the process's input is closed."""
    worker = runlane.worker("poll")
    say(ready=True)
    sys.stdin.read()
    worker.stop("1s")
    worker.wait()
    runlane.close()


if __name__ == "__main__":
    poll(make(sys.argv[1]))
