"""Errors as one clear line, and what to do next."""

from __future__ import annotations

import json
import sys

from runlane.cli.output import plain
from runlane.cli.text import clean
from runlane.domain.errors import ConfigurationError, ContractError, RunlaneError

FAILED, NOT_UNDERSTOOD = 1, 2

_NEXT = {
    "storage_unavailable": "`runlane dev` starts a Postgres here; DATABASE_URL names another.",
    "run_not_found": "`runlane runs list` shows the newest runs.",
    "configuration_invalid": "`runlane dev` in another terminal, in this folder, starts what is missing.",
}


def report(error: Exception, *, as_json: bool) -> int:
    """Write it to the standard error; the exit code."""
    known = error if isinstance(error, RunlaneError) else RunlaneError("unexpected", _first_line(error))
    sys.stderr.write(_document(known) if as_json else _text(known))
    return NOT_UNDERSTOOD if isinstance(error, ContractError) or known.code == "app_invalid" else FAILED


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
    if hint := _hint(error):
        lines.append(f"  {hint}")
    return "\n".join(lines) + "\n"


def _hint(error: RunlaneError) -> str:
    if isinstance(error, ConfigurationError) and not any("DATABASE_URL" in fault or "SQS queue" in fault for fault in error.faults):
        return ""
    return _NEXT.get(error.code, "")


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
