"""A development session: servers, worker processes and the ticker, started and stopped in the right order."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from rich.text import Text

from runlane.adapters.local.worker import spawn_worker
from runlane.bootstrap import load_app, migrate
from runlane.cli.dev_lane import DATABASES, PROCESS, QUEUES, SERVERS, announced, announcement, forget_ended
from runlane.cli.example import example_payload
from runlane.cli.local_lane import importable, local_lane
from runlane.cli.output import answer, cell, console
from runlane.cli.project import Project, find_project, local_folder, make_importable
from runlane.cli.text import clean, command_line
from runlane.domain.errors import ConfigurationError, ConflictError
from runlane.services.payload import AnyTask
from runlane.settings import Settings, adopt_variables, read_settings, variables_of_process

QUEUE = "runlane-dev"
FUNCTION_TIMEOUT = timedelta(seconds=30)
# Six times the function's, as in the template.
VISIBILITY = timedelta(seconds=180)
LOOK_EVERY = 0.5
RESTART_AFTER = 1.0

_KEPT = (*SERVERS, "AWS_ENDPOINT_URL", "RUNLANE_MESSAGE_GROUPS", "RUNLANE_APP", "RUNLANE_ENVIRONMENT", "RUNLANE_SCHEMA")


def session(*, app: str | None, workers: int, tick_every: timedelta, as_json: bool) -> None:
    """Run until SIGINT or SIGTERM; a worker that ends is replaced."""
    project, stopping = find_project(), threading.Event()
    forget_ended()
    if other := announcement().get(PROCESS):
        raise ConflictError("dev_running", f"`runlane dev` already runs in {project.folder} (pid {other}); use it, or stop it first")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    make_importable(project.folder)
    with _lane(app) as (variables, made, found), ExitStack() as stack:
        changed = _migrated(found, made)
        tasks = load_app(found.app).tasks
        stack.enter_context(announced(variables, made))
        running = stack.enter_context(_workers(project, variables, found, workers, tick_every))
        _welcome(found, tasks, changed, workers, tick_every, as_json)
        while not stopping.wait(LOOK_EVERY):
            if dead := running.replace_dead():
                console(stderr=True).print(Text(f"{dead} ended; another takes its place", style="yellow"))
            stopping.wait(RESTART_AFTER if dead else 0)


def _migrated(found: Settings, made: Collection[str]) -> tuple[str, ...]:
    try:
        return migrate(settings=found)
    except ConfigurationError as error:
        if error.code != "migration_edited" or "DATABASE_URL" not in made:
            raise
        folder = _short(local_folder())
        raise ConfigurationError(
            f"{folder} holds the database of another version of Runlane ({error.message.partition(' was ')[0]} has changed since); "
            f"if its runs may go, begin anew: rm -r {folder}",
            code=error.code,
        ) from error


@contextmanager
def _lane(app: str | None) -> Iterator[tuple[Mapping[str, str], Collection[str], Settings]]:
    given = variables_of_process()
    has_database, has_queue = (any(given.get(name) for name in names) for names in (DATABASES, QUEUES))
    if given.get("AWS_ENDPOINT_URL") and not has_queue:
        raise ConfigurationError(
            "AWS_ENDPOINT_URL names an SQS, but no queue is named: set RUNLANE_QUEUE_URL to one of its queues, or unset it"
        )
    with local_lane(
        queue=QUEUE,
        visibility=VISIBILITY,
        directory=local_folder() / "postgres",
        postgres=not has_database,
        sqs=not has_queue,
        in_order=_in_order(given),
    ) as made:
        chosen = {"RUNLANE_APP": app} if app else {}
        kept = {name: given[name] for name in _KEPT if given.get(name)}
        named = {"RUNLANE_ENVIRONMENT": "development", **kept, **made, **chosen}
        adopt_variables(named)
        yield named, made, read_settings()


def _in_order(given: Mapping[str, str]) -> list[str]:
    """The queues to be kept in order; what is wrong with the variable is told with the other settings' faults."""
    try:
        named = json.loads(given.get("RUNLANE_MESSAGE_GROUPS") or "{}")
    except ValueError:
        return []
    return list(named) if isinstance(named, dict) else []


class Workers:
    """Processes that poll; the first also ticks."""

    def __init__(self, commands: list[list[str]], variables: Mapping[str, str]) -> None:
        self._commands = commands
        self._variables = variables
        self._processes = [spawn_worker(command, variables) for command in commands]

    def replace_dead(self) -> str:
        """Start again what has ended; what it was, or nothing."""
        for place, process in enumerate(self._processes):
            if process.poll() is not None:
                self._processes[place] = spawn_worker(self._commands[place], self._variables)
                return f"worker {process.pid}"
        return ""

    def stop(self) -> None:
        """Let invocations under way end, at most as long as a function may take."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(FUNCTION_TIMEOUT.total_seconds())
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _workers(project: Project, variables: Mapping[str, str], found: Settings, count: int, tick_every: timedelta) -> Iterator[Workers]:
    urls = sorted({*filter(None, [found.queue_url, found.timers_queue_url]), *found.queue_urls.values()})
    command = ["--app", project.worker, "--function-timeout", str(FUNCTION_TIMEOUT.total_seconds())]
    command += [part for url in urls for part in ("--queue-url", url)]
    ticking = ["--maintenance", project.maintenance, "--tick-every", str(tick_every.total_seconds())]
    told = {"RUNLANE_TELL_RUNS": variables_of_process().get("RUNLANE_TELL_RUNS") or "1"}
    running = Workers([[*command, *ticking], *([command] * (count - 1))], {**variables, **importable(project.folder), **told})
    try:
        yield running
    finally:
        console(stderr=True).print(Text("stopping …", style="dim"))
        running.stop()


def _welcome(
    found: Settings, tasks: Mapping[str, AnyTask], changed: tuple[str, ...], workers: int, tick_every: timedelta, as_json: bool
) -> None:
    facts = {
        "app": found.app,
        "tasks": tuple(tasks),
        "environment": found.environment,
        "database_url": found.database_url,
        "queue_url": found.queue_url,
        "workers": workers,
        "tick_every": tick_every,
        "migrated": changed,
        "variables": str(local_folder() / "env"),
    }
    answer(facts, as_json, lambda: _greeting(facts, tasks))


def _greeting(facts: Mapping[str, object], tasks: Mapping[str, AnyTask]) -> Text:
    text = Text("Runlane runs here; Ctrl-C stops it.\n\n", style="bold")
    text.append(f"  application  {facts['app']} ({clean(facts['environment'])})\n", style="not bold")
    text.append(f"  tasks        {clean(', '.join(tasks) or 'none')}\n", style="not bold")
    text.append(f"  database     {facts['database_url'] or 'in Secrets Manager'}\n", style="not bold")
    text.append(f"  queue        {facts['queue_url']}\n", style="not bold")
    text.append(f"  workers      {facts['workers']}, maintenance every {cell(facts['tick_every'])}\n\n", style="not bold")
    text.append("In another terminal, in this folder:\n\n")
    text.append("".join(f"  {line}\n" for line in _next(tasks)), style="not bold")
    text.append(f"\nYour own programs: (set -a; . {_short(local_folder() / 'env')}; python script.py)\n", style="not bold")
    text.append("Workers keep the code they started with: after a change, stop this and start it again.\n", style="not bold")
    return text


def _next(tasks: Mapping[str, AnyTask]) -> Iterator[str]:
    if activate := _activation():
        yield activate
    examples = ((task, example_payload(task.payload_type)) for task in tasks.values())
    if tried := next((pair for pair in examples if pair[1]), next(((task, "{…}") for task in tasks.values()), None)):
        yield command_line(["runlane", "trigger", tried[0].id, str(tried[1]), "--wait", "30s"])
    yield "runlane runs list"
    yield "runlane queues stats"


def _activation() -> str:
    """What puts `runlane` on a shell's path; nothing if it is there, as it is not when `make` started us."""
    script = Path(sys.executable).parent / "activate"
    return "" if shutil.which("runlane") or not script.is_file() else f". {_short(script)}"


def _short(path: Path) -> str:
    """A path as a shell in this folder takes it."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
