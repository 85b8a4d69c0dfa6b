"""`runlane runs cancel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from runlane.cli.connect import connected
from runlane.cli.options import Actor, AppPath, AsJson, Reason
from runlane.cli.output import answer
from runlane.domain.errors import RunlaneError
from runlane.domain.ids import parse_run_id
from runlane.domain.run import Status

RunIds = Annotated[list[str], typer.Argument(help="The runs' ids.", metavar="RUN_ID…")]


def cancel(run_ids: RunIds, reason: Reason = None, actor: Actor = "cli", app: AppPath = None, as_json: AsJson = False) -> None:
    """End waiting runs at once; ask running ones to stop."""
    with connected(app) as runlane:
        data, refused = each(run_ids, lambda run_id: {"status": runlane.runs.cancel(run_id, actor=actor, reason=reason)})
    tell(data, refused, lambda entry: _cancelled(entry["status"]), as_json)


def each(run_ids: Sequence[str], steer: Callable[[str], dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What became of each, and what was refused; ids are read before anything is done, and a refusal of the only one is raised."""
    data: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for run_id in [parse_run_id(run_id) for run_id in run_ids]:
        try:
            data.append({"run_id": run_id, **steer(run_id)})
        except RunlaneError as error:
            if len(run_ids) == 1:
                raise
            refused.append({"run_id": run_id, "code": error.code, "message": error.message})
    return data, refused


def tell(data: list[dict[str, Any]], refused: list[dict[str, Any]], text: Callable[[dict[str, Any]], str], as_json: bool) -> None:
    from rich.text import Text

    lines = [
        *(f"{entry['run_id']}  {text(entry)}" for entry in data),
        *(f"{entry['run_id']}  refused: {entry['message']}" for entry in refused),
    ]
    then = ["runlane", "runs", "show", data[0]["run_id"], "--watch"] if len(data) == 1 else []
    answer({"data": data, "refused": refused}, as_json, lambda: Text("\n".join(lines)), then)
    if refused:
        raise typer.Exit(1)


def _cancelled(status: Status) -> str:
    if status is Status.CANCELLATION_REQUESTED:
        return "cancellation requested: the run is told within seconds"
    return "cancelled" if status is Status.CANCELLED else f"nothing to cancel: the run had already {status}"
