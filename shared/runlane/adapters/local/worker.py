"""A worker process of the local lane: `python -m runlane.adapters.local.worker --app functions.worker.app:handler --queue-url …`.

Polls SQS and calls the handler until SIGTERM or SIGINT, then ends when the running invocations have. The handler builds its runtime
from the environment, as in Lambda; boto3 finds SQS there too (`AWS_ENDPOINT_URL`).
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import boto3
from botocore.config import Config

from runlane.adapters.local.faults import LocalLaneError
from runlane.adapters.local.guarded import with_variables
from runlane.adapters.local.poller import EventSourcePoller, Handler, event_source
from runlane.adapters.local.ticker import Ticker

PARENT_CHECK_SECONDS = 0.25
ORPHAN_GRACE_SECONDS = 1.0
"""The servers end with the parent too, so an orphan's invocations have nowhere to write."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    log = logging.StreamHandler()
    log.setFormatter(Printable("%(asctime)s %(process)d %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    services: list[EventSourcePoller | Ticker] = [build_poller(options)] if options.queue_url else []
    if options.maintenance:
        services.append(Ticker(load(options.maintenance), every=timedelta(seconds=options.tick_every)))
    for service in services:
        service.start()
    is_orphan = wait(stopping, options.exit_with)
    grace = timedelta(seconds=ORPHAN_GRACE_SECONDS if is_orphan else options.function_timeout)
    ended = [service.stop(grace) for service in services]
    return 0 if all(ended) else 1


class Printable(logging.Formatter):
    """Lines that a terminal only shows: an error's text comes from anywhere."""

    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).split("\n")
        return "\n".join(line if line.isprintable() else ascii(line)[1:-1] for line in lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="runlane.adapters.local.worker", description=__doc__)
    parser.add_argument("--app", required=True, metavar="MODULE:ATTR", help="the worker's Lambda handler")
    parser.add_argument("--queue-url", action="append", default=[], help="a queue to poll; may be repeated")
    parser.add_argument("--concurrency", type=int, default=2, help="invocations at once for each queue")
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--function-timeout", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--maintenance", metavar="MODULE:ATTR", help="the maintenance handler, called every --tick-every")
    parser.add_argument("--tick-every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--exit-with", type=int, metavar="PID", help="stop when the process that started this one, PID, is gone")
    return parser.parse_args(arguments)


def build_poller(options: argparse.Namespace) -> EventSourcePoller:
    # The poller backs off by itself; the driver's own retries would keep an orphan alive for seconds.
    config = Config(connect_timeout=1, read_timeout=25, max_pool_connections=64, retries={"mode": "standard", "total_max_attempts": 2})
    client = boto3.client("sqs", config=config)
    sources = [
        event_source(client, url, batch_size=options.batch_size, maximum_concurrency=options.concurrency) for url in options.queue_url
    ]
    return EventSourcePoller(client, sources, load(options.app), timeout=timedelta(seconds=options.function_timeout))


def load(path: str) -> Handler:
    """The handler at `module:attribute`; raises LocalLaneError when there is none."""
    module, _, attribute = path.partition(":")
    handler: Handler | None = getattr(importlib.import_module(module), attribute or "handler", None)
    if not callable(handler):
        raise LocalLaneError(f"{path} names no handler: write module:attribute, like functions.worker.app:handler.")
    return handler


def wait(stopping: threading.Event, parent: int | None) -> bool:
    """Until this process is to stop; True if that is because its parent is gone."""
    while not stopping.wait(PARENT_CHECK_SECONDS):
        if parent is not None and os.getppid() != parent:
            return True
    return False


def spawn_worker(arguments: Sequence[str], variables: Mapping[str, str], log: Path | None = None) -> subprocess.Popen[bytes]:
    """Start this module as a process that ends with this one; `arguments` as on the command line, `variables` on top of the environment.

    The process is the worker itself: `terminate()` drains it, `kill()` is the crash. Its output is appended to `log`, or is this one's.
    """
    command = [sys.executable, "-m", __spec__.name, *arguments, "--exit-with", str(os.getpid())]
    # A session of its own: Ctrl-C reaches the parent only, which stops its workers in the right order.
    with nullcontext() if log is None else log.open("ab") as output:
        return subprocess.Popen(
            with_variables(command, variables), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


if __name__ == "__main__":
    sys.exit(main())
