"""Worker processes forked from one that has everything imported, so that a test which kills three does not wait for three to start."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path

_forks = get_context("forkserver")
_PRELOADED = [
    "functions.maintenance.app",
    "functions.worker.app",
    "runlane.cli.worker",
    "runlane.runtime",
    "tests.acceptance.failures.tasks",
    "tests.acceptance.failures.warm",
]
_forks.set_forkserver_preload([*_PRELOADED, __name__])


class WorkerProcess:
    """`python -m runlane.adapters.local.worker arguments`, as a process of its own; `returncode` is None while it lives.

    command: it is `runlane arguments` instead.
    """

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str], log: Path, *, command: bool = False) -> None:
        self._process = _forks.Process(target=_work, args=(list(arguments), dict(variables), log, command), daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.pid is not None and self.returncode is None:
            os.kill(self.pid, number)

    def stop(self, timeout: float) -> int | None:
        """SIGTERM; how it ended, None if it goes on after `timeout` seconds."""
        self.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float) -> int | None:
        self._process.join(timeout)
        return self.returncode

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.join()


def _work(arguments: list[str], variables: dict[str, str], log: Path, command: bool) -> None:
    os.environ.update(variables)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    logging.basicConfig(force=True)
    from runlane.adapters.local.worker import main  # after the environment is set
    from runlane.cli import run

    if command:
        sys.exit(run(arguments))

    # The parent is the fork server, which ends with the tests.
    sys.exit(main([*arguments, "--exit-with", str(os.getppid())]))
