"""`runlane demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from runlane.cli.options import AsJson

LEAST, MOST = 100, 20_000


def demo(
    runs: Annotated[int, typer.Option(min=LEAST, max=MOST, help="How many runs.")] = 2000,
    as_json: AsJson = False,
) -> None:
    """Two thousand runs through the real handlers, one worker killed, and proof that nothing went wrong.

    On a Postgres and an SQS of its own, whatever the environment names.
    """
    from runlane.cli.demo.play import play
    from runlane.cli.demo.show import report
    from runlane.cli.output import answer, console

    found = play(runs, console(stderr=as_json))
    answer(found, as_json, lambda: report(found))
    if not found.holds:
        raise typer.Exit(1)
