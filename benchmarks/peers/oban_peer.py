"""Oban for Python: uvloop, a queue whose limit is the batch; it fetches as many as are free and completes them in batches."""

from __future__ import annotations

import asyncio

import uvloop
from oban import Oban, worker
from oban.job import Job
from oban.schema import install

from benchmarks.peers.lines import Measured, payload, steps, verb

measured = Measured()


@worker(queue="main")
class Noop:
    async def process(self, job: Job) -> None:
        measured.note(job.args["number"])


async def main(name: str, dsn: str, number: int) -> None:
    pool = await Oban.create_pool(dsn=dsn)
    await pool.wait()
    if name == "setup":
        await install(pool)
    elif name == "worker":
        await work(pool, dsn, number)
    else:
        await add(name, Oban(pool=pool), number)
    await pool.close()


async def add(name: str, oban: Oban, number: int) -> None:
    if name == "enqueue":
        for numbers in steps(number):
            await oban.enqueue_many([Noop.new(payload(n)) for n in numbers])
        return
    measured.begin()
    for n in range(number):
        await oban.enqueue(Noop.new(payload(n)))
    measured.answer()


async def work(pool: object, dsn: str, limit: int) -> None:
    measured.begin()
    async with Oban(pool=pool, queues={"main": limit}):
        while not measured.is_over(dsn):
            await asyncio.sleep(0.1)
        measured.answer()


if __name__ == "__main__":
    uvloop.run(main(*verb()))
