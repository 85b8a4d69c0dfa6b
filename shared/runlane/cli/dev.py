"""`runlane dev`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from runlane.cli.options import AppPath, AsJson

OFTENEST_TICK = timedelta(seconds=1)
"""Maintenance without a pause would take the database from the runs."""


def dev(
    workers: Annotated[int, typer.Option(min=1, max=32, help="Worker processes.")] = 1,
    tick_every: Annotated[str, typer.Option(help="How often maintenance runs; at least 1s.", metavar="DURATION")] = "60s",
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Run the whole product here, until interrupted: Postgres, SQS, workers and maintenance.

    Data stays in .runlane. DATABASE_URL and AWS_ENDPOINT_URL (or RUNLANE_QUEUE_URL) name servers to use instead.
    """
    from runlane.cli.dev_session import session
    from runlane.domain.durations import parse_duration
    from runlane.domain.errors import ContractError

    every = parse_duration(tick_every, "--tick-every")
    if every < OFTENEST_TICK:
        raise ContractError(
            "option_invalid", f"--tick-every: {tick_every!r} is more often than every second; give more", meta={"field": "--tick-every"}
        )
    session(app=app, workers=workers, tick_every=every, as_json=as_json)
