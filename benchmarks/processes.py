"""Worker processes under measurement: they say `ready`, wait for a line, work, and answer with one line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

ROOT = Path(__file__).parents[1]
PATIENCE = 180.0
"""Seconds that a worker process may take for an answer before it is killed, so that a peer that hangs ends the run."""


class WorkerProcess:
    """Killed by `close` if it has not ended by itself."""

    def __init__(self, command: Sequence[str], first: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        variables = {**os.environ, **(environment or {})}
        self._process = subprocess.Popen(command, cwd=ROOT, text=True, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if first is not None:
            self._write(first)
        self.answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self) -> None:
        self._write("go")

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        killer = Timer(PATIENCE, self._process.kill)
        killer.start()
        line = self._process.stdout.readline()
        killer.cancel()
        if not line:
            raise RuntimeError(f"the worker process ended with {self._process.wait()} and no answer")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
