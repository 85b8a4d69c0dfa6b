"""A polling worker of the timers' application, in a process of its own, until its input is closed."""

from __future__ import annotations

import json
import sys

from benchmarks.catalog import QUEUES
from benchmarks.lane import ENVIRONMENT
from benchmarks.timers_app import TASKS
from runlane import Lane, Runlane
from runlane.adapters.postgres.storage import PostgresStorage


def main() -> None:
    runlane = Runlane(lane=Lane(PostgresStorage(sys.argv[1]), None), queues=QUEUES, tasks=TASKS, environment=ENVIRONMENT)
    worker = runlane.worker("poll")
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.read()
    worker.stop("1s")
    worker.wait()
    runlane.close()


if __name__ == "__main__":
    main()
