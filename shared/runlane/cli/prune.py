"""`runlane prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.bulk import Bulk, carry_out
from runlane.cli.connect import connected
from runlane.cli.filters import Filters, QueueFilter, Statuses, TaskId
from runlane.cli.options import AppPath, AsJson, DryRun, Limit, Yes
from runlane.domain.durations import parse_duration
from runlane.domain.run import TERMINAL

if TYPE_CHECKING:
    from runlane.services.operate.bulk import BulkReport

OlderThan = Annotated[str, typer.Option("--older-than", help="Ended at least so long ago, e.g. 30d.", metavar="DURATION")]


def prune(
    older_than: OlderThan,
    status: Statuses = None,
    task: TaskId = None,
    queue: QueueFilter = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Delete ended runs with their histories, oldest first. The owner of an idempotency key stays until the key's time is up.

    Interrupted, it has kept what it had not reached, and prints the command that prunes the rest.
    """
    parse_duration(older_than, "--older-than")
    chosen = Filters(tuple(status or ()), task, queue)
    with connected(app) as runlane:

        def move(*, cursor: str | None, **extent: Any) -> BulkReport:
            return runlane.runs.prune(older_than=older_than, statuses=chosen.status or tuple(TERMINAL), task=task, queue=queue, **extent)

        words = ("runlane", "prune", "--older-than", older_than, *chosen.words())
        carry_out(Bulk(move, words, "prune", "pruned", limit, is_paged=False), dry_run=dry_run, yes=yes, as_json=as_json)
