"""The demo from the first server to the last check."""

from __future__ import annotations

import time

from rich.console import Console

from runlane.bootstrap import audit, runtime
from runlane.cli.demo.plan import plan
from runlane.cli.demo.report import Report, checks, summaries
from runlane.cli.demo.show import board
from runlane.cli.demo.stage import stage
from runlane.cli.demo.story import Story


def play(runs: int, console: Console) -> Report:
    """Play it, live on `console`."""
    started_at = time.monotonic()
    made = plan(runs)
    console.print("Starting Postgres, SQS and two workers of their own …")
    with stage() as staged:
        reader = audit()
        playing_since = time.monotonic()
        with board(console) as shown:
            facts = Story(runtime(), reader, staged, made, shown.tell, shown.update).play()
        ended_at = time.monotonic()
        queues = summaries(reader)
        found = checks(reader, made, facts, queues)
        reader.close()
        runtime().close()
    return Report(queues, found, ended_at - playing_since, time.monotonic() - started_at)
