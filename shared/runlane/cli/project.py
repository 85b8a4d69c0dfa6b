"""Where on this machine the project is, and where `runlane dev` keeps what it needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

_MARK = Path("functions", "worker", "app.py")


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with an application, and the handlers that serve it, as `module:attribute`."""

    folder: Path
    worker: str = "runlane.cli.functions:worker"
    maintenance: str = "runlane.cli.functions:maintenance"


def find_project(start: Path | None = None) -> Project:
    """The nearest folder at or above `start` (default: the current one) that holds the functions; else `start`, with Runlane's own."""
    here = (start or Path.cwd()).resolve()
    found = next((folder for folder in (here, *here.parents) if (folder / _MARK).is_file()), None)
    return Project(here) if found is None else Project(found, "functions.worker.app:handler", "functions.maintenance.app:handler")


def local_folder() -> Path:
    """`.runlane` of the project; not made."""
    return find_project().folder / ".runlane"


def make_importable(folder: Path) -> None:
    """Let this process import the modules of a folder, before others of the same name."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
