"""What the drivers of the peers share: the lines of `benchmarks.processes`, the payload, and when a worker has nothing left to do.

A driver is run as `python -m benchmarks.peers.NAME_peer VERB DSN …` by its peer's interpreter and imports nothing of ours but this:

    setup DSN            make the peer's tables
    enqueue DSN COUNT    add jobs 0 … COUNT - 1 by its bulk call
    trigger DSN COUNT    add them one by one, measured
    worker DSN BATCH     work them off, measured

A worker that has no mode for emptying its queue asks LEFT, an SQL statement in the environment, how many jobs are left.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

STEP = 1000
"""Jobs of one bulk call."""
IDLE_FOR = 1.0
"""Seconds without a job after which a worker asks whether any is left."""


def payload(number: int) -> dict[str, Any]:
    return {"number": number, "who": "tenant-17", "what": "noop", "n": 3}


def steps(count: int) -> list[range]:
    return [range(start, min(start + STEP, count)) for start in range(0, count, STEP)]


def verb() -> tuple[str, str, int]:
    """What the command line asks for: verb, DSN, number."""
    name, dsn, *rest = sys.argv[1:]
    return name, dsn, int(rest[0]) if rest else 0


class Measured:
    """From `begin`, which waits for the parent's word, to `answer`, which keeps the connections until the parent has looked at them."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.started = self.ended = self._cpu = self._asked = 0.0

    def begin(self) -> None:
        _say({"ready": True})
        sys.stdin.readline()
        self._cpu, self.started = time.process_time(), time.time()

    def note(self, number: int) -> None:
        self.handled.append(number)
        self.ended = time.time()

    def is_over(self, dsn: str) -> bool:
        """No job has come for a while, and none is left; asked by a connection of its own, which costs a worker next to nothing."""
        if time.time() - max(self.started, self.ended, self._asked) < IDLE_FOR:
            return False
        import psycopg

        with psycopg.connect(dsn) as connection:
            row = connection.execute(os.environ["LEFT"].encode()).fetchone()
        self._asked = time.time()
        return row is not None and row[1] == 0

    def answer(self) -> None:
        cpu, ended = time.process_time() - self._cpu, self.ended or time.time()
        _say({"cpu": cpu, "started": self.started, "ended": ended, "handled": self.handled})
        sys.stdin.readline()


def _say(facts: dict[str, Any]) -> None:
    print(json.dumps(facts), flush=True)
