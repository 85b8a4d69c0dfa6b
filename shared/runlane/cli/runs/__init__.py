"""`runlane runs`."""

from __future__ import annotations

import typer

from runlane.cli.manual import epilog
from runlane.cli.runs.finding import find
from runlane.cli.runs.listing import list_runs
from runlane.cli.runs.rescheduling import reschedule
from runlane.cli.runs.single import events, show
from runlane.cli.runs.steering import CANCEL, RERUN, RETRY, command

application = typer.Typer(help="Look at runs and their histories; steer them one by one or by filter.", no_args_is_help=True)

application.command("list", epilog=epilog("runs list"))(list_runs)
application.command("show", epilog=epilog("runs show"))(show)
application.command("events", epilog=epilog("runs events"))(events)
application.command("find", epilog=epilog("runs find"))(find)
application.command("reschedule", epilog=epilog("runs reschedule"))(reschedule)
for verb in (CANCEL, RETRY, RERUN):
    application.command(verb.name, epilog=epilog(f"runs {verb.name}"))(command(verb))
