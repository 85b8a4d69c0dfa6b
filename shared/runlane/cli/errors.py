"""Errors as one clear line, and what to do next."""

from __future__ import annotations

import json
import sys
import sysconfig
import traceback
from pathlib import Path

import typer

from runlane.cli.output import plain
from runlane.cli.text import clean
from runlane.domain.errors import ConfigurationError, ContractError, RunlaneError

FAILED, NOT_UNDERSTOOD = 1, 2

_NEXT = {
    "storage_unavailable": "`runlane dev` starts a Postgres here; DATABASE_URL names another.",
    "schedule_not_found": "`runlane schedules list` shows those in force.",
    "run_not_found": "`runlane runs list` shows the newest runs.",
    "configuration_invalid": "`runlane dev` (or make dev) in another terminal, in this folder, starts what is missing.",
    "queue_at_capacity": "Trigger it without --now, and it starts when a slot is free; `runlane queues stats` shows what holds them.",
    "throttled": "Trigger it without --now, and it starts when the throttle lets it.",
    "paused": "Trigger it without --now, and it starts after `runlane queues resume`.",
    "wait_timeout": "`runlane queues stats` shows what blocks a queue.",
}


def report(error: Exception, *, as_json: bool) -> int:
    """Write it to the standard error; the exit code."""
    known = _known(error)
    # Without a message it has said what it is: help, where a command was missing.
    if known.message:
        sys.stderr.write(_document(known) if as_json else _text(known))
    return NOT_UNDERSTOOD if isinstance(known, ContractError) or known.code == "app_invalid" else FAILED


def _known(error: Exception) -> RunlaneError:
    if isinstance(error, RunlaneError):
        return error
    if isinstance(error, typer.Abort):
        return RunlaneError("aborted", "aborted; nothing was done")
    return _usage(error) if isinstance(error, typer.TyperException) else _unexpected(error)


def _usage(error: typer.TyperException) -> RunlaneError:
    """What the command line itself refuses, with the usage of the command that it was meant for."""
    message = error.format_message().replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    if message and context is not None:
        message += f"\n{context.get_usage()}\n`{context.command_path} --help` tells more."
    return ContractError("usage_invalid", message)


def _document(error: RunlaneError) -> str:
    found = {"code": error.code, "message": error.message, "retryable": error.retryable, "meta": plain(error.meta)}
    return json.dumps({"error": found}, default=str) + "\n"


def _text(error: RunlaneError) -> str:
    lines = [
        f"error: {clean(line)}" if number == 0 else f"  {clean(line)}"
        for number, line in enumerate(error.message.splitlines() or [error.code])
    ]
    if error.__cause__ is not None and error.code.startswith("storage_"):
        lines.append(f"  {clean(_first_line(error.__cause__))}")
    if error.__cause__ is not None and error.code in ("unexpected", "app_invalid") and (place := _place(error.__cause__)):
        lines.append(f"  at {clean(place)}")
    if hint := _hint(error):
        lines.append(f"  {hint}")
    return "\n".join(lines) + "\n"


def _hint(error: RunlaneError) -> str:
    if "next" in error.meta:
        return clean(f"go on with: {error.meta['next']}")
    if isinstance(error, ConfigurationError) and not any("DATABASE_URL" in fault or "SQS queue" in fault for fault in error.faults):
        return ""
    return _NEXT.get(error.code, "")


def _unexpected(error: Exception) -> RunlaneError:
    made = RunlaneError("unexpected", _first_line(error))
    made.__cause__ = error
    return made


def _place(error: BaseException) -> str:
    """The last line of the user's own code that it came through; nothing if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    ours, libraries = Path(__file__).parents[1], {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    own = [frame for frame in frames if not {ours, *libraries} & set(Path(frame.filename).parents)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
