"""The `runlane` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main() -> None:
    """Run the command of `sys.argv` and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command; 0, 1 when it failed, 2 when it was not understood."""
    try:
        from runlane.cli.application import application
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in ("rich", "typer"):
            raise
        sys.stderr.write("error: the command line is an extra: pip install 'runlane[cli]', or 'runlane[local]' for dev and demo\n")
        return 1
    from runlane.cli.errors import report

    try:
        application(args=list(arguments), prog_name="runlane")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # The border to a person: never a traceback, always what to do next.
        return report(error, as_json="--json" in arguments)
    return 0
