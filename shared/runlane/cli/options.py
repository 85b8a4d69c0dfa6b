"""Options that every command has; given before the command they hold for it too."""

from __future__ import annotations

from typing import Annotated, Any

import typer


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
