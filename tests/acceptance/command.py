"""The `runlane` command as a stranger runs it: a process of its own, in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from app import runlane as application
from runlane import cli

ROOT = Path(__file__).parents[2]
OURS = ("RUNLANE_", "DATABASE_URL", "AWS_")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def variables(**given: str) -> dict[str, str]:
    """This process's environment without what names servers, and with both our packages importable."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**kept, "PYTHONPATH": os.pathsep.join((str(ROOT / "shared"), str(ROOT))), **given}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "runlane.cli", *arguments]


def runlane(*arguments: str, folder: Path, stdin: str = "", timeout: float = 60, **given: str) -> Answer:
    done = subprocess.run(
        command(*arguments), cwd=folder, env=variables(**given), input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
    return Answer(done.returncode, done.stdout, done.stderr)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def inside(*arguments: str, folder: Path, stdin: str = "", is_terminal: bool = False, **given: str) -> Answer:
    """The same in this process, which takes a tenth of the time; what the command changes in it is undone."""
    out, err = io.StringIO(), io.StringIO()
    application.cache_clear()
    with (
        mock.patch.dict(os.environ, variables(**given), clear=True),
        mock.patch.object(sys, "path", list(sys.path)),
        mock.patch.object(sys, "stdin", Terminal(stdin) if is_terminal else io.StringIO(stdin)),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = cli.run(arguments)
    application.cache_clear()
    return Answer(code, out.getvalue(), err.getvalue())
