"""Does what a page says, in a process and a folder of its own."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import psycopg

from tests.docs.snippets import CLEAN, DEV, DIALOGUE, FILE, MORE_OF_FILE, OUTPUT, SCRIPT, SHELL, SQL, Snippet, read
from tests.docs.wording import Ids

ROOT = Path(__file__).parents[2]
OURS = ("RUNLANE_", "DATABASE_URL", "AWS_")
LONG_RUNNING = re.compile(r"runlane (?:dev|worker)\b(?!.*(?:--help|--mode drain))")
PLAIN_COMMAND = re.compile(r"runlane [^|<>;&$`\n]*")
EXPORT = re.compile(r"export (?P<name>\w+)=(?P<value>.+)")
SAID_WITHIN = 45.0


class Untrue(AssertionError):
    """The page says what is not so."""


def follow(page: Path, folder: Path, variables: Mapping[str, str], report: Path) -> None:
    """The target of a process: follow the page; the report says what was not true, and is empty if nothing was."""
    folder.mkdir()
    os.chdir(folder)
    only_these(variables)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    problem = ""
    reader = Reader(page, folder)
    try:
        with contextlib.closing(reader):
            reader.read_all()
    except BaseException as error:
        problem = (str(error) if isinstance(error, Untrue) else "".join(traceback.format_exception(error))) + reader.worker_said()
    report.write_text(problem, encoding="utf-8")
    # Threads of the page's own runtimes are nobody's business any more.
    os._exit(0)


def only_these(variables: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith(OURS)]:
        del os.environ[name]
    os.environ.update(variables)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


class Reader:
    def __init__(self, page: Path, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._ids = Ids()
        self._said = ""
        self._running: list[Running] = []
        self._serving = 0
        self._log = folder.parent / "worker.log"
        self._main = ModuleType("__main__")
        sys.modules["__main__"] = self._main

    def read_all(self) -> None:
        for snippet in read(self._page):
            if snippet.not_run:
                continue
            try:
                self._do(snippet)
            except Untrue as error:
                raise Untrue(f"{self._page.name}:{snippet.line}: {error}") from error
            except Exception as error:
                raise Untrue(f"{self._page.name}:{snippet.line}: {''.join(traceback.format_exception(error))}") from error

    def close(self) -> None:
        self._stop_serving(signal.SIGKILL)
        for running in reversed(self._running):
            running.stop()

    def worker_said(self) -> str:
        return f"\nthe worker said:\n{said}" if self._log.exists() and (said := self._log.read_text(encoding="utf-8")) else ""

    def _do(self, snippet: Snippet) -> None:
        actions: dict[str, Callable[[Snippet], None]] = {
            FILE: self._write,
            MORE_OF_FILE: self._write,
            SCRIPT: self._run_python,
            SHELL: self._run_in_shell,
            DIALOGUE: self._converse,
            SQL: self._execute,
            OUTPUT: lambda snippet: self._compare("the snippet before it", snippet.text, self._said),
            DEV: self._develop,
            CLEAN: lambda snippet: only_these({}),
        }
        if snippet.kind in actions:
            actions[snippet.kind](snippet)

    def _write(self, snippet: Snippet) -> None:
        path = self._folder / snippet.file
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8") + "\n\n" if snippet.kind == MORE_OF_FILE else ""
        path.write_text(before + snippet.text, encoding="utf-8")
        self._forget_modules()

    def _run_python(self, snippet: Snippet) -> None:
        text = self._ids.real(snippet.text).replace("from __future__ import annotations\n", "\n")
        code = compile("\n" * snippet.line + text, str(self._page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(code, self._main.__dict__)
        self._said = said.getvalue()

    def _run_in_shell(self, snippet: Snippet) -> None:
        for command in _one_line_each(snippet.text).splitlines():
            if command.strip() and not command.startswith("#"):
                self._succeed(command)

    def _succeed(self, command: str) -> None:
        code, self._said = self._run(command)
        if code:
            raise Untrue(f"$ {command}\nended with {code}:\n{self._said}")

    def _converse(self, snippet: Snippet) -> None:
        for written, stated in snippet.exchanges():
            command = _one_line_each(written)
            if LONG_RUNNING.match(command):
                self._running.append(Running(command, stated.removesuffix("^C\n"), self._ids))
            else:
                self._compare(command, stated, self._run(command)[1])
            if stated.endswith("^C\n"):
                self._running.pop().stop()

    def _execute(self, snippet: Snippet) -> None:
        with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
            connection.execute(self._ids.real(snippet.text).encode())

    def _compare(self, what: str, stated: str, said: str) -> None:
        if not self._ids.fits(stated, said):
            raise Untrue(f"{what}\nsaid:\n{said}\nbut the page states:\n{stated}")

    def _run(self, command: str) -> tuple[int, str]:
        command = self._ids.real(command)
        if export := EXPORT.fullmatch(command):
            os.environ[export["name"]] = "".join(shlex.split(export["value"]))
            return 0, ""
        if PLAIN_COMMAND.fullmatch(command):
            return self._run_here(shlex.split(command)[1:])
        done = subprocess.run(
            ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.returncode, done.stdout

    def _run_here(self, arguments: list[str]) -> tuple[int, str]:
        """The command in this process, which has loaded what it needs; the application is read anew, as by a new process."""
        from runlane.cli import run

        with self._fresh_modules(), contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
            code = run(arguments)
        return code, said.getvalue()

    def _develop(self, snippet: Snippet) -> None:
        """What `runlane dev` does, on the servers of all pages; a second time it is stopped and started again."""
        # Not killed: SQS would give a killed worker's open receive the next wakeup.
        self._stop_serving(signal.SIGTERM)
        self._succeed("runlane migrate")
        self._serving = os.fork()
        if self._serving == 0:
            self._serve()

    def _serve(self) -> NoReturn:
        """A process that has loaded what it needs: a new one would take longer to start than the page to read."""
        from runlane.adapters.local import worker

        with self._log.open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        self._forget_modules()
        sys.path.insert(1, str(ROOT))
        url = os.environ["RUNLANE_QUEUE_URL"]
        arguments = ["--app", "functions.worker.app:handler", "--queue-url", url, "--exit-with", str(os.getppid())]
        os._exit(worker.main([*arguments, "--maintenance", "functions.maintenance.app:handler", "--tick-every", "1"]))

    def _stop_serving(self, how: signal.Signals) -> None:
        if self._serving:
            os.kill(self._serving, how)
            os.waitpid(self._serving, 0)
            self._serving = 0

    @contextlib.contextmanager
    def _fresh_modules(self) -> Iterator[None]:
        kept = self._forget_modules()
        try:
            yield
        finally:
            self._forget_modules()
            sys.modules.update(kept)

    def _forget_modules(self) -> dict[str, ModuleType]:
        importlib.invalidate_caches()
        own = {name: module for name, module in sys.modules.items() if str(getattr(module, "__file__", None)).startswith(str(self._folder))}
        for name in own:
            del sys.modules[name]
        return own


def _one_line_each(text: str) -> str:
    """Commands without the line ends that a backslash goes over."""
    return re.sub(r"\\\n\s*", "", text)


class Running:
    """A command that goes on beside the page, as in a terminal of its own; it must say what is stated before the page goes on."""

    def __init__(self, command: str, stated: str, ids: Ids) -> None:
        self._command = command
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=self._listen, daemon=True).start()
        self._await(stated, ids)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(SAID_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise Untrue(f"{self._command} did not stop") from None
        if code:
            raise Untrue(f"{self._command} ended with {code}:\n{''.join(self._lines)}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        self._lines.extend(self._process.stdout)

    def _await(self, stated: str, ids: Ids) -> None:
        deadline = time.monotonic() + SAID_WITHIN
        while stated.strip() and not ids.fits(stated, "".join(self._lines)):
            if time.monotonic() > deadline or self._process.poll() is not None:
                self._process.kill()
                raise Untrue(f"{self._command}\nsaid:\n{''.join(self._lines)}\nbut the page states:\n{stated}")
            time.sleep(0.05)
