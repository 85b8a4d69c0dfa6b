"""The demo's servers and worker processes."""

from __future__ import annotations

import logging
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from runlane.adapters.local.ticker import Ticker
from runlane.adapters.local.worker import load, spawn_worker
from runlane.cli.demo.catalog import APP
from runlane.cli.local_lane import importable, local_lane
from runlane.cli.project import Project, find_project, make_importable
from runlane.settings import adopt_variables

LEASE = "3s"
"""Short, so that the recovery of a killed worker's runs is seen."""
WORKERS = 2
FUNCTION_TIMEOUT = 20
TICK_EVERY = timedelta(seconds=0.5)


class Stage:
    """Worker processes by pid, on one local lane."""

    def __init__(self, handler: str, variables: Mapping[str, str], queue_url: str, log: Path) -> None:
        self._handler = handler
        self._variables = variables
        self._queue_url = queue_url
        self._log = log
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(self._workers)

    def start_worker(self) -> int:
        arguments = ["--app", self._handler, "--queue-url", self._queue_url, "--function-timeout", str(FUNCTION_TIMEOUT)]
        worker = spawn_worker(arguments, self._variables, self._log)
        self._workers[worker.pid] = worker
        return worker.pid

    def kill_worker(self, pid: int) -> None:
        """SIGKILL, as when a machine is gone; returns when the process has ended."""
        worker = self._workers.pop(pid)
        worker.kill()
        worker.wait()

    def stop(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            worker.wait()


@contextmanager
def stage() -> Iterator[Stage]:
    """Servers started, database migrated, workers polling, maintenance ticking; all gone afterwards."""
    project = find_project()
    with (
        _quiet(),
        tempfile.TemporaryDirectory(prefix="runlane-demo-") as folder,
        local_lane(queue="runlane-demo", visibility=timedelta(seconds=FUNCTION_TIMEOUT)) as lane,
    ):
        variables = {**lane, "RUNLANE_APP": APP, "RUNLANE_ENVIRONMENT": "demo", "RUNLANE_LEASE_DURATION": LEASE}
        adopt_variables(variables, alone=True)
        made = Stage(project.worker, {**variables, **importable(project.folder)}, lane["RUNLANE_QUEUE_URL"], Path(folder, "log"))
        ticker: Ticker | None = None
        try:
            for _ in range(WORKERS):
                made.start_worker()
            ticker = _prepare(project)
            yield made
        finally:
            if ticker is not None:
                ticker.stop()
            made.stop()


@contextmanager
def _quiet() -> Iterator[None]:
    """Failures are part of the story, so they are not logged beside it."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _prepare(project: Project) -> Ticker:
    from runlane.bootstrap import migrate

    migrate()
    make_importable(project.folder)
    return Ticker(load(project.maintenance), every=TICK_EVERY).start()
