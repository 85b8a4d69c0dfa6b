"""procrastinate: the async worker with `concurrency` jobs at a time until the queue is empty (`wait=False`); it fetches them one by one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from benchmarks.peers.lines import Measured, payload, steps, verb

logging.disable(logging.WARNING)
measured = Measured()


def make(connector: Any) -> tuple[App, Any]:
    app = App(connector=connector)

    @app.task(name="noop", queue="main")
    async def noop(number: int, who: str, what: str, n: int) -> None:
        measured.note(number)

    return app, noop


def add(name: str, dsn: str, number: int) -> None:
    app, noop = make(SyncPsycopgConnector(conninfo=dsn))
    with app.open():
        if name == "enqueue":
            for numbers in steps(number):
                noop.batch_defer(*[payload(n) for n in numbers])
            return
        app.check_connection()
        measured.begin()
        for n in range(number):
            noop.defer(**payload(n))
        measured.answer()


async def work(name: str, dsn: str, concurrency: int) -> None:
    app, _ = make(PsycopgConnector(conninfo=dsn))
    async with app.open_async():
        if name == "setup":
            await app.schema_manager.apply_schema_async()
            return
        measured.begin()
        await app.run_worker_async(queues=["main"], concurrency=concurrency, wait=False)
        measured.answer()


if __name__ == "__main__":
    name, dsn, number = verb()
    if name in ("setup", "worker"):
        asyncio.run(work(name, dsn, number))
    else:
        add(name, dsn, number)
