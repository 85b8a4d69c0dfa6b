"""`runlane migrate`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer


class Phase(StrEnum):
    BEFORE = "before"
    AFTER = "after"


PhaseOption = Annotated[Phase | None, typer.Option("--phase", help="Only those that run before, or after, the deploy.")]


def migrate(phase: PhaseOption = None, app: AppPath = None, as_json: AsJson = False) -> None:
    """Apply pending migrations, and put the application's queue policies and schedules in force."""
    from rich.text import Text

    from runlane.cli.connect import settings

    found = settings(app)
    from runlane.bootstrap import migrate as apply

    applied = apply(None if phase is None else phase.value, settings=found)
    answer(
        {"applied": applied},
        as_json,
        lambda: Text("\n".join(applied) or "nothing to do: schema and policies are up to date"),
        ["runlane", "queues", "stats"],
    )
