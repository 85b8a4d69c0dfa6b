"""From the command line to a runtime: the environment, else what `runlane dev` left in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runlane.runtime import Runlane
    from runlane.settings import Settings


def settings(app: str | None) -> Settings:
    """Settings of this command; `app` wins over the environment. Makes modules of the current folder importable."""
    from runlane.cli.dev_lane import adopt
    from runlane.cli.project import make_importable
    from runlane.settings import read_settings

    make_importable(Path.cwd())
    adopt()
    found = read_settings()
    return found.model_copy(update={"app": app}) if app else found


@contextmanager
def connected(app: str | None) -> Iterator[Runlane]:
    """The application's runtime, closed afterwards."""
    path = settings(app).app
    from runlane.bootstrap import load_app

    runlane = load_app(path)
    try:
        yield runlane
    finally:
        runlane.close()


def catalog(app: str | None) -> list[str]:
    """The names of the application's queues, whatever the environment says: neither a database nor a queue need be there yet."""
    from runlane.cli.project import make_importable
    from runlane.settings import adopt_variables, app_path

    make_importable(Path.cwd())
    path = app or app_path()
    # Of this process, which ends after it.
    adopt_variables({"DATABASE_URL": "postgresql://localhost/nowhere", "RUNLANE_TRANSPORT": "none"}, alone=True)
    from runlane.bootstrap import load_app

    return [queue.name for queue in load_app(path).queue_registry]
