"""chancy: uvloop, a queue of `concurrency` jobs on the AsyncExecutor with eager polling; ends are written in batches, once a second."""

from __future__ import annotations

import asyncio
import logging

import uvloop
from chancy import Chancy, Queue, Worker, job

from benchmarks.peers import chancy_peer
from benchmarks.peers.lines import Measured, payload, steps, verb

EXECUTOR = "chancy.executors.asyncex.AsyncExecutor"
measured = Measured()
log = logging.getLogger("chancy")
log.setLevel(logging.ERROR)


@job(queue="main")
async def noop(*, number: int, who: str, what: str, n: int) -> None:
    measured.note(number)


async def main(name: str, dsn: str, number: int) -> None:
    async with Chancy(dsn, log=log) as chancy:
        if name == "setup":
            await chancy.migrate()
        elif name == "worker":
            await work(chancy, dsn, number)
        else:
            await add(name, chancy, number)


async def add(name: str, chancy: Chancy, number: int) -> None:
    if name == "enqueue":
        for numbers in steps(number):
            async for _ in chancy.push_many([noop.job.with_kwargs(**payload(n)) for n in numbers]):
                pass
        return
    measured.begin()
    for n in range(number):
        await chancy.push(noop.job.with_kwargs(**payload(n)))
    measured.answer()


async def work(chancy: Chancy, dsn: str, concurrency: int) -> None:
    await chancy.declare(Queue("main", concurrency=concurrency, executor=EXECUTOR, eager_polling=True), upsert=True)
    measured.begin()
    async with Worker(chancy, register_signal_handlers=False):
        while not measured.is_over(dsn):
            await asyncio.sleep(0.1)
        measured.answer()


if __name__ == "__main__":
    # A job is found by the path of its function, and `__main__` is none.
    uvloop.run(chancy_peer.main(*verb()))
