"""pgqueuer as its documentation runs it: asyncpg, uvloop, `run(batch_size=…)` in drain mode."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.peers.lines import Measured, payload, steps, verb


async def main(name: str, dsn: str, number: int) -> None:
    driver = AsyncpgDriver(await asyncpg.connect(dsn))
    queries, measured = Queries(driver), Measured()
    if name == "setup":
        await queries.install()
    elif name == "enqueue":
        for numbers in steps(number):
            payloads: list[bytes | None] = [encoded(n) for n in numbers]
            await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))
    elif name == "trigger":
        measured.begin()
        for n in range(number):
            await queries.enqueue("noop", encoded(n))
        measured.answer()
    else:
        await work(driver, measured, number)


async def work(driver: AsyncpgDriver, measured: Measured, batch: int) -> None:
    queue = PgQueuer(driver)

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        measured.note(json.loads(job.payload or b"")["number"])

    measured.begin()
    await queue.run(batch_size=batch, mode=QueueExecutionMode.drain)
    measured.answer()


def encoded(number: int) -> bytes:
    return json.dumps(payload(number)).encode()


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main(*verb()))
