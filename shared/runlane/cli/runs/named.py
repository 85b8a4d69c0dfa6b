"""What is done to runs that are named by their ids, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

from runlane.cli.output import answer
from runlane.cli.runs.single import following
from runlane.domain.errors import RunlaneError
from runlane.domain.ids import parse_run_id


@dataclass(frozen=True, slots=True)
class Steered:
    """What became of each, and what was refused."""

    data: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)


def each(run_ids: Sequence[str], steer: Callable[[str], dict[str, Any]]) -> Steered:
    """Ids are read before anything is done. A refusal of the only one is raised; of several, the others are done."""
    steered = Steered()
    for run_id in [parse_run_id(run_id) for run_id in run_ids]:
        try:
            steered.data.append({"run_id": run_id, **steer(run_id)})
        except RunlaneError as error:
            if len(run_ids) == 1:
                raise
            steered.refused.append({"run_id": run_id, "code": error.code, "message": error.message})
    return steered


def tell(steered: Steered, say: Callable[[dict[str, Any]], str], as_json: bool) -> None:
    """Answer; exit code 1 if one was refused."""
    from rich.text import Text

    data, refused = steered.data, steered.refused
    lines = [f"{entry['run_id']}  {say(entry)}" for entry in data] + [
        f"{entry['run_id']}  refused: {entry['message']}" for entry in refused
    ]
    then = following(data[0].get("child_run_id", data[0]["run_id"])) if len(data) == 1 else []
    document = {
        "data": data,
        "matched": len(data) + len(refused),
        "done": len(data),
        "refused": refused,
        "next_cursor": None,
        "next": None,
        "dry_run": False,
    }
    answer(document, as_json, lambda: Text("\n".join(lines)), then)
    if refused:
        raise typer.Exit(1)
