"""`runlane runs reschedule`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from runlane.cli.connect import connected
from runlane.cli.options import Actor, AppPath, AsJson, RunId
from runlane.cli.output import answer, cell
from runlane.cli.runs.single import following
from runlane.cli.times import written
from runlane.domain.durations import parse_duration
from runlane.domain.errors import ContractError

At = Annotated[str | None, typer.Option("--at", help="The new due time, in ISO 8601; UTC unless it says otherwise.", metavar="TIME")]
In = Annotated[str | None, typer.Option("--in", help="Due so long from now; 0s is now.", metavar="DURATION")]


def reschedule(run_id: RunId, at: At = None, delay: In = None, actor: Actor = "cli", app: AppPath = None, as_json: AsJson = False) -> None:
    """Move a waiting run to another due time."""
    from rich.text import Text

    run_at = _due(at, delay)
    with connected(app) as runlane:
        status = runlane.runs.reschedule(run_id, run_at, actor=actor)
    text = f"{status}, due {cell(run_at)}"
    answer({"run_id": run_id, "status": status, "due_at": run_at}, as_json, lambda: Text(text), following(run_id, status))


def _due(at: str | None, delay: str | None) -> datetime:
    if at is not None and delay is None:
        return written(at, "--at")
    if delay is not None and at is None:
        return datetime.now(UTC) + parse_duration(delay, "--in")
    raise ContractError("option_invalid", "--at: give it or --in, one of the two", meta={"field": "--at"})
