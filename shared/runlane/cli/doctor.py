"""`runlane doctor`."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from runlane.cli.connect import connected, settings
from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runlane.services.doctor import Report

_STYLES = {"ok": "green", "unseen": "dim", "warning": "yellow", "failure": "bold red"}


def doctor(app: AppPath = None, as_json: AsJson = False) -> None:
    """Say what is wrong with the environment and what mends it; exit code 1 if something is."""
    found = settings(app)
    from runlane.bootstrap import health, release_migrations
    from runlane.services.doctor import examine
    from runlane.services.doctor.database import catalog_checks, database_checks

    with connected(app) as runlane, closing(health(found)) as database:
        report = examine(
            (
                *database_checks(database, environment=runlane.environment, migrations=release_migrations(), now=lambda: datetime.now(UTC)),
                *catalog_checks(runlane.start, runlane.lane.storage.queues.read_policies, [queue.name for queue in runlane.queue_registry]),
            )
        )
    answer(report, as_json, lambda: _shown(report))
    if not report.is_well:
        raise typer.Exit(1)


def _shown(report: Report) -> RenderableType:
    from rich.text import Text

    shown = Text()
    for finding in report.findings:
        shown.append(f"{finding.level:<8}", style=_STYLES[finding.level])
        shown.append(f"{finding.check}: {finding.what}\n")
        for label, text in (("why", finding.why), ("remedy", finding.remedy)):
            if text:
                shown.append(f"         {label}: {text}\n", style="dim" if label == "why" else "")
    shown.append("all is well" if report.is_well else "something is wrong")
    return shown
