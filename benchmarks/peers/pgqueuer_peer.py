"""pgqueuer as its documentation runs it: asyncpg, uvloop, `run(batch_size=…)`. Runs in the peers' environment, imports nothing of ours.

`setup DSN`, `enqueue DSN COUNT`, and `worker DSN BATCH`, which speaks the lines of `benchmarks.processes`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

STEP = 1000


async def setup(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await Queries(AsyncpgDriver(connection)).install()


async def enqueue(dsn: str, count: int) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
    for start in range(0, count, STEP):
        numbers = range(start, min(start + STEP, count))
        payloads: list[bytes | None] = [json.dumps({"number": n, "who": "tenant-17", "what": "noop", "n": 3}).encode() for n in numbers]
        await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))


async def work(dsn: str, batch: int) -> None:
    handled: list[int] = []
    ended = 0.0
    driver = AsyncpgDriver(await asyncpg.connect(dsn))
    queue = PgQueuer(driver)

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        nonlocal ended
        handled.append(json.loads(job.payload or b"")["number"])
        ended = time.time()

    say({"ready": True})
    sys.stdin.readline()
    cpu, wall = time.process_time(), time.time()
    await queue.run(batch_size=batch, mode=QueueExecutionMode.drain)
    say({"cpu": time.process_time() - cpu, "started": wall, "ended": ended, "handled": handled})
    sys.stdin.readline()  # Keeps the connection, so that its server process can still be measured.


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    uvloop.install()
    verb, dsn, *rest = sys.argv[1:]
    verbs: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"setup": setup, "enqueue": enqueue, "worker": work}
    asyncio.run(verbs[verb](dsn, *map(int, rest)))
