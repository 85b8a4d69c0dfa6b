"""DBOS: a queue without limits, its default; with one of ten it starts ten a poll, and a poll is a second."""

from __future__ import annotations

import os
import time
from typing import Any

from dbos import DBOS, DBOSClient, EnqueueOptions

from benchmarks.peers.lines import Measured, payload, verb

OPTIONS: EnqueueOptions = {"workflow_name": "noop", "queue_name": "main", "app_version": "1"}
measured = Measured()


def serve(name: str, dsn: str) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": for_sqlalchemy(dsn),
            "log_level": "ERROR",
            "run_admin_server": False,
            "application_version": "1",
            "executor_id": f"worker-{os.getpid()}",
        }
    )

    @DBOS.workflow(name="noop")
    def noop(job: dict[str, Any]) -> None:
        measured.note(job["number"])

    DBOS.launch()
    if name == "worker":
        measured.begin()
        DBOS.register_queue("main")
        while not measured.is_over(dsn):
            time.sleep(0.1)
        measured.answer()
    DBOS.destroy()


def add(name: str, dsn: str, number: int) -> None:
    """It has no bulk call."""
    client = DBOSClient(system_database_url=for_sqlalchemy(dsn))
    if name == "enqueue":
        for n in range(number):
            client.enqueue(OPTIONS, payload(n))
    else:
        measured.begin()
        for n in range(number):
            client.enqueue(OPTIONS, payload(n))
        measured.answer()
    client.destroy()


def for_sqlalchemy(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://")


if __name__ == "__main__":
    name, dsn, number = verb()
    if name in ("setup", "worker"):
        serve(name, dsn)
    else:
        add(name, dsn, number)
