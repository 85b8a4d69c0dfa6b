"""A worker process of ours: `python -m benchmarks.worker DSN BATCH CONTINUE_INLINE_FOR`; first line: the bodies of its wakeups.

What its runs hand over to is published to the process itself and delivered after its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from benchmarks.catalog import handled
from benchmarks.lane import MemoryTransport, counted_trips, make_runlane, sqs_events


def main(dsn: str, batch: str, inline: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Metrics are written, to nowhere.
    events = sqs_events(json.loads(sys.stdin.readline()), int(batch))
    transport = MemoryTransport()
    runlane = make_runlane(dsn, transport, metrics=True, continue_inline_for=inline)
    runlane.start()  # Connects, as the peer has connected.
    _say(answers, {"ready": True})
    sys.stdin.readline()
    with counted_trips() as trips:
        cpu, wall = time.process_time(), time.time()
        failures = sum(len(runlane.deliver_sqs(event)["batchItemFailures"]) for event in events)
        while transport.bodies:
            events += sqs_events(transport.take(int(batch)), int(batch))
            failures += len(runlane.deliver_sqs(events[-1])["batchItemFailures"])
        cpu, ended = time.process_time() - cpu, time.time()
    answer = {"cpu": cpu, "started": wall, "ended": ended, "handled": handled, "trips": trips, "events": len(events), "failures": failures}
    _say(answers, answer)
    sys.stdin.readline()


def _say(answers: Any, answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
