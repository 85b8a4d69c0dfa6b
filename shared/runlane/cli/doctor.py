"""`runlane doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.connect import connected, settings
from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runlane.domain.finding import Finding
    from runlane.services.doctor import Report

_STYLES = {"ok": "green", "unseen": "dim", "warning": "yellow", "failure": "bold red"}


Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")]


BeforeDeploy = Annotated[
    bool, typer.Option("--before-deploy", help="Look only at what this release needs in order to be deployed; for CI, ahead of sam deploy.")
]
FunctionName = Annotated[
    str | None, typer.Option("--function", metavar="NAME", help="With the variables of this deployed function instead of this environment.")
]


def doctor(
    app: AppPath = None,
    function: FunctionName = None,
    before_deploy: BeforeDeploy = False,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with the environment and what mends it; exit code 1 for failures."""
    from runlane.cli.deployed import adopt_function, deployed_checks, is_deployed, template_finding

    if function is not None:
        adopt_function(function)
    found = settings(app)
    from runlane.bootstrap import health, release_migrations
    from runlane.domain.finding import Level
    from runlane.services.doctor import examine
    from runlane.services.doctor.database import catalog_checks, database_checks

    with ExitStack() as opened, closing(health(found)) as database:

        def catalog() -> Iterator[Finding]:
            """Last, as an application that cannot be loaded is no reason not to look at the database."""
            runlane = opened.enter_context(connected(app))
            # Once, as what differs is told once.
            stored, differences = runlane.lane.storage, runlane.start()
            known = [queue.name for queue in runlane.queue_registry]
            if is_deployed(found):
                yield from template_finding(known)
            for _, check in catalog_checks(lambda: differences, stored.queues.read_policies, known, stored.schedules.list_schedules):
                yield from check()

        checks = database_checks(
            database,
            environment=found.environment,
            migrations=release_migrations(),
            now=lambda: datetime.now(UTC),
            manual=release_migrations(manual=True),
            after=release_migrations(phase="after"),
            before_deploy=before_deploy,
        )
        if not before_deploy:
            # What is deployed first, as it can be looked at though the database cannot.
            deployed = deployed_checks(found, opened) if is_deployed(found) else ()
            checks = (*deployed, *checks, ("application", catalog))
        report = examine(checks)
    answer(report, as_json, lambda: _shown(report))
    if not report.is_well or (strict and report.count(Level.WARNING)):
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
    shown.append(_summary(report))
    return shown


def _summary(report: Report) -> str:
    from runlane.domain.finding import Level

    counted = ((report.count(Level.FAILURE), "failure"), (report.count(Level.WARNING), "warning"))
    told = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counted if count]
    return ", ".join(told) or "all is well"
