"""`runlane verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.completion import complete_queue
from runlane.cli.connect import connected
from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer, cell, counted, table
from runlane.cli.times import ago

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runlane.domain.verification import Invariant, Verification

Since = Annotated[str | None, typer.Option("--since", help="Only what happened since then: 2h ago, or an ISO time.", metavar="TIME")]
OneQueue = Annotated[str | None, typer.Option("--queue", help="Only this queue.", metavar="QUEUE", autocompletion=complete_queue)]
OneRun = Annotated[str | None, typer.Option("--run", help="Only this run's own history and place.", metavar="RUN_ID")]
Faults = Annotated[int, typer.Option("--limit", help="Name at most so many faults of each check: 1 to 1000.", metavar="COUNT")]


def verify(
    since: Since = None, queue: OneQueue = None, run: OneRun = None, limit: Faults = 20, app: AppPath = None, as_json: AsJson = False
) -> None:
    """Check the history and the present state against every promise; exit code 1 when one is broken. Changes nothing."""
    moment = None if since is None else ago(since, "--since")
    with connected(app) as runlane:
        found = runlane.verify(since=moment, queue=queue, run=run, limit=limit)
    answer(found, as_json, lambda: _shown(found))
    if not found.holds:
        raise typer.Exit(1)


def _shown(found: Verification) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    checks = table(
        ["check", "#faults", "#ms", "what must hold"],
        ([one.name, _count(one), f"{one.seconds * 1000:.0f}", one.invariant] for one in found.invariants),
    )
    faults = [
        Text.assemble((f"{one.name}: ", "bold red"), cell(f"{fault.subject} {fault.fault}"))
        for one in found.invariants
        for fault in one.violations
    ]
    broken = sum(not one.holds for one in found.invariants)
    verdict = f"{counted(broken, 'promise')} broken" if broken else "every promise kept"
    last = f"{verdict}; {counted(len(found.invariants), 'check')} in {found.seconds:.1f} s"
    return Group(checks, *faults, Text(last, style="bold red" if broken else "bold green"))


def _count(one: Invariant) -> str:
    return f"over {len(one.violations)}" if one.is_cut else str(len(one.violations))
