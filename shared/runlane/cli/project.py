"""Where on this machine the project is, and where `runlane dev` keeps what it needs."""

from __future__ import annotations

from pathlib import Path

from runlane.domain.errors import ConfigurationError

WORKER = "functions.worker.app:handler"
MAINTENANCE = "functions.maintenance.app:handler"
_MARK = Path("functions", "worker", "app.py")


def find_project(start: Path | None = None) -> Path | None:
    """The nearest folder at or above `start` (default: the current one) that holds the functions."""
    here = (start or Path.cwd()).resolve()
    return next((folder for folder in (here, *here.parents) if (folder / _MARK).is_file()), None)


def require_project() -> Path:
    """The same; `ConfigurationError` when there is none."""
    found = find_project()
    if found is None:
        raise ConfigurationError(f"{_MARK} was not found in {Path.cwd()} or above it; go to your clone of the repository first")
    return found


def local_folder() -> Path:
    """`.runlane` beside the functions, else in the current folder; not made."""
    return (find_project() or Path.cwd()) / ".runlane"
