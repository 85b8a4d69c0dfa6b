"""`runlane idempotency-keys`."""

from __future__ import annotations

from typing import Annotated

import typer

from runlane.cli.connect import connected
from runlane.cli.manual import epilog
from runlane.cli.options import AppPath, AsJson, TaskName
from runlane.cli.output import answer

application = typer.Typer(help="Free idempotency keys.", no_args_is_help=True)


@application.callback()
def keys() -> None:
    pass


@application.command(epilog=epilog("idempotency-keys reset"))
def reset(
    task: TaskName,
    key: Annotated[str, typer.Argument(help="The idempotency key.", metavar="KEY")],
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Free a key, so that the next trigger with it makes a new run."""
    from rich.text import Text

    with connected(app) as runlane:
        freed = runlane.idempotency_keys.reset(task, key)
    text = "freed: the next trigger with this key makes a new run" if freed else "nothing to free: no run of this task owns the key"
    answer({"task": task, "key": key, "freed": freed}, as_json, lambda: Text(text))
