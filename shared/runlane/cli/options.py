"""Options that several commands have. `--app` and `--json` given before the command hold for it too."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from runlane.cli.completion import complete_queue, complete_task


def _inherited(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    root = context.find_root()
    return value if value or root is context else root.params.get(parameter.name or "", value)


AppPath = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE:ATTR", help="Where the application is; default RUNLANE_APP, else app:runlane.", callback=_inherited
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.", callback=_inherited)]

RunId = Annotated[str, typer.Argument(help="The run's id.", metavar="RUN_ID")]
TaskName = Annotated[str, typer.Argument(help="The task's id.", metavar="TASK", autocompletion=complete_task)]
QueueName = Annotated[str, typer.Argument(help="The queue's name.", metavar="QUEUE", autocompletion=complete_queue)]
Actor = Annotated[str, typer.Option(help="Who, for the history.", metavar="NAME")]
Reason = Annotated[str | None, typer.Option(help="Why, for the history.", metavar="TEXT")]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say how many runs it would be.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Limit = Annotated[int | None, typer.Option("--limit", help="At most so many runs; default all.", metavar="COUNT")]

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again until Ctrl-C; with --json a line for each change.")]
Every = Annotated[str, typer.Option("--every", help="How often --watch looks; at least 100ms.", metavar="DURATION")]
