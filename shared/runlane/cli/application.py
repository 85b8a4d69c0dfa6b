"""All commands, one module a group. What they import at the top must be cheap: `--help` loads all of them."""

from __future__ import annotations

import typer

from runlane.cli import idempotency_keys, queues, runs, schedules
from runlane.cli.demo.command import demo
from runlane.cli.dev import dev
from runlane.cli.doctor import doctor
from runlane.cli.manual import epilog
from runlane.cli.migrate import migrate
from runlane.cli.options import AppPath, AsJson
from runlane.cli.prune import prune
from runlane.cli.template import template
from runlane.cli.tick import tick
from runlane.cli.trigger import trigger
from runlane.cli.verify import verify
from runlane.cli.worker import worker

application = typer.Typer(
    help="Durable, fair background runs: Postgres holds the truth, SQS only wakes the workers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@application.callback()
def root(app: AppPath = None, as_json: AsJson = False) -> None:
    pass


for command in (demo, dev, migrate, doctor, verify, trigger, worker, tick, prune, template):
    application.command(epilog=epilog(command.__name__))(command)
for group in (runs, queues, schedules, idempotency_keys):
    application.add_typer(group.application, name=group.__name__.rpartition(".")[2].replace("_", "-"))
