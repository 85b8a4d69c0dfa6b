"""How other commands find a running `runlane dev`: the file `.runlane/env`, which a shell can read too."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runlane.cli.project import local_folder
from runlane.settings import adopt_variables, variables_of_process

PROCESS = "RUNLANE_DEV_PID"
MADE = "RUNLANE_DEV_MADE"
DATABASES = ("DATABASE_URL", "RUNLANE_DATABASE_SECRET_ARN", "RUNLANE_DATABASE_ADMIN_SECRET_ARN")
QUEUES = ("RUNLANE_QUEUE_URL", "RUNLANE_QUEUE_URLS", "RUNLANE_TIMERS_QUEUE_URL")
SERVERS = (*DATABASES, *QUEUES)


@contextmanager
def announced(variables: Mapping[str, str], made: Collection[str]) -> Iterator[Path]:
    """The file with these variables, for as long as this process works; only its owner may read it. made: those that end with it."""
    path = local_folder() / "env"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    content = {**variables, PROCESS: str(os.getpid()), MADE: " ".join(made)}
    path.write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in content.items()))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def adopt() -> None:
    """Take over all of a running `runlane dev`, unless the environment names another database or queue."""
    forget_ended()
    given, found = variables_of_process(), announcement()
    if all((given.get(name) or value) == value for name, value in found.items() if name in SERVERS) and not _names_more(given, found):
        # The application may still be chosen; the rest belongs together.
        adopt_variables({name: value for name, value in found.items() if name != "RUNLANE_APP" or not given.get(name)})


def forget_ended() -> None:
    """Leave out what a shell read from the file of a `runlane dev` that has ended since: its servers are gone."""
    given = variables_of_process()
    if given.get(PROCESS) and given[PROCESS] != announcement().get(PROCESS):
        adopt_variables(dict.fromkeys((*given.get(MADE, "").split(), PROCESS, MADE), ""))


def announcement() -> Mapping[str, str]:
    """The variables of a running `runlane dev`; nothing if none runs in this folder."""
    found = _read(local_folder() / "env")
    return found if _is_alive(found.get(PROCESS, "")) else {}


def _names_more(given: Mapping[str, str], found: Mapping[str, str]) -> bool:
    return any(given.get(name) and name not in found for name in SERVERS)


def _read(path: Path) -> dict[str, str]:
    if not path.is_file() or path.stat().st_uid != os.getuid():
        return {}
    pairs = (word.partition("=") for word in shlex.split(path.read_text()))
    return {name: value for name, _, value in pairs}


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, OSError):
        return False
    return True
