"""The commands, as typer describes them."""

from __future__ import annotations

import html
import re
import subprocess
import sys


def command_line() -> str:
    command = [sys.executable, "-m", "typer", "runlane.cli.application", "utils", "docs", "--name", "runlane", "--title", "Command line"]
    text = html.unescape(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # Not a dialogue: nobody answers `[OPTIONS]`.
    text = re.sub(r"```console\n\$ ", "```\n", text)
    text = re.sub(r"^\* `--(?:help|install-completion|show-completion)`: .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
