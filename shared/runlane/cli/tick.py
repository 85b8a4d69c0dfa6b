"""`runlane tick`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from runlane.cli.connect import connected
from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer, table


def tick(app: AppPath = None, as_json: AsJson = False) -> None:
    """Run one pass of maintenance: recover, expire, dispatch and publish what was left behind."""
    with connected(app) as runlane:
        # Where the database is out of reach, or has no schema, every phase would fail and log the same: a cheap read says it once.
        runlane.queues.stats()
        report = runlane.tick()
    answer(report, as_json, lambda: table(["phase", "#done", ""], _rows(report)))
    if report["failed"]:
        raise typer.Exit(1)


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, int, str]]:
    for phase, count in report["counts"].items():
        yield phase, count, ", ".join(state for state in ("failed", "unfinished") if phase in report[state])
