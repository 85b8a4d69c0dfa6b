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
