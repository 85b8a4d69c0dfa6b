"""Handlers for worker processes: each writes a line to the file that the environment names."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def note(line: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(line + "\n")


def record(event: dict[str, Any], context: Any) -> None:
    """A body `sleep` takes two seconds on its first delivery."""
    for message in event["Records"]:
        count = message["attributes"]["ApproximateReceiveCount"]
        note(f"start {message['body']} {count}")
        time.sleep(2 if (message["body"], count) == ("sleep", "1") else 0)
        note(f"end {message['body']} {count}")


def tick(event: dict[str, Any], context: Any) -> None:
    note("tick")
