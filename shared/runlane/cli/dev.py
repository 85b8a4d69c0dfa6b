"""`runlane dev`."""

from __future__ import annotations

from typing import Annotated

import typer

from runlane.cli.options import AppPath, AsJson


def dev(
    workers: Annotated[int, typer.Option(min=1, max=32, help="Worker processes.")] = 1,
    tick_every: Annotated[str, typer.Option(help="How often maintenance runs.", metavar="DURATION")] = "60s",
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Run the whole product here, until interrupted: Postgres, SQS, workers and maintenance.

    Data stays in .runlane. DATABASE_URL and AWS_ENDPOINT_URL (or RUNLANE_QUEUE_URL) name servers to use instead.
    """
    from runlane.cli.dev_session import session
    from runlane.domain.durations import parse_duration

    session(app=app, workers=workers, tick_every=parse_duration(tick_every, "--tick-every"), as_json=as_json)
