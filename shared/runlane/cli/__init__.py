"""The `runlane` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130
"""As shells have it: 128 and the number of the signal."""


def main() -> None:
    """Run the command of `sys.argv` and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command; 0, 1 when it failed, 2 when it was not understood, 130 when Ctrl-C ended it before its end."""
    try:
        from runlane.cli.application import application
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in ("rich", "typer"):
            raise
        sys.stderr.write("error: the command line is an extra: install runlane with [cli], or with [local] for dev and demo\n")
        return 1
    from runlane.cli.errors import report

    try:
        # Not standalone: its errors are said like all others, cleaned of what a terminal would obey.
        code = application(args=list(arguments), prog_name="runlane", standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # The border to a person: never a traceback, always what to do next.
        return report(error, as_json="--json" in arguments)
    return code if isinstance(code, int) else 0
