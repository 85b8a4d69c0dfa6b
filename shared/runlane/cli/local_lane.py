"""A Postgres and an SQS queue on this machine, for as long as a command runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.local.sqs import LocalSqs
from runlane.settings import variables_of_process


@contextmanager
def local_lane(
    *,
    queue: str,
    visibility: timedelta,
    directory: Path | None = None,
    postgres: bool = True,
    sqs: bool = True,
    in_order: Sequence[str] = (),
) -> Iterator[dict[str, str]]:
    """Servers of one's own, as the variables with which a process uses them.

    directory: keeps the data between runs; without it everything is gone at the end, and nothing is synced.
    postgres, sqs: False leaves that one out. in_order: Runlane queues that get an SQS FIFO queue each, with a timers queue for all.
    """
    with ExitStack() as stack, ThreadPoolExecutor(1) as beside:
        starting = beside.submit(_postgres, stack, directory) if postgres else None
        variables = _sqs(stack, queue, visibility, in_order) if sqs else {}
        yield {**variables, **(starting.result() if starting else {})}


def importable(project: Path) -> dict[str, str]:
    """The variable with which a child process can import the functions."""
    inherited = variables_of_process().get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(project), inherited)))}


def _postgres(stack: ExitStack, directory: Path | None) -> Mapping[str, str]:
    return {"DATABASE_URL": stack.enter_context(LocalPostgres(directory, durable=directory is not None)).socket_dsn}


def _sqs(stack: ExitStack, queue: str, visibility: timedelta, in_order: Sequence[str]) -> Mapping[str, str]:
    server = stack.enter_context(LocalSqs())
    variables = {"RUNLANE_QUEUE_URL": server.create_queue(queue, visibility_timeout=visibility).url, **server.variables}
    if in_order:
        # By number: a Runlane queue's name may hold what an SQS queue's may not.
        names = {name: f"{queue}-{number}.fifo" for number, name in enumerate(in_order)}
        urls = {name: server.create_queue(fifo, visibility_timeout=visibility).url for name, fifo in names.items()}
        variables["RUNLANE_QUEUE_URLS"] = json.dumps(urls)
        variables["RUNLANE_TIMERS_QUEUE_URL"] = server.create_queue(f"{queue}-timers", visibility_timeout=visibility).url
    return variables
