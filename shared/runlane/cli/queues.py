"""`runlane queues`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.connect import connected
from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer, counted, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runlane.domain.queue import QueueStats

application = typer.Typer(help="Depth, age and blocked keys of queues; pause and resume.", no_args_is_help=True)

Queue = Annotated[str, typer.Argument(help="The queue's name.", metavar="QUEUE")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant.")]
Key = Annotated[str | None, typer.Option("--key", help="Only this concurrency key.")]
Actor = Annotated[str, typer.Option(help="Who, for the record.")]


@application.command()
def stats(
    queues: Annotated[list[str] | None, typer.Argument(help="Names; default all.", metavar="QUEUE")] = None,
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """What waits, since when, what runs, and what is blocked by what; from counters."""
    with connected(app) as runlane:
        found = runlane.queues.stats(*(queues or ()))
    answer({"data": found}, as_json, lambda: _table(found))


@application.command()
def pause(
    queue: Queue, tenant: Tenant = None, concurrency_key: Key = None, actor: Actor = "cli", app: AppPath = None, as_json: AsJson = False
) -> None:
    """Start nothing more; running runs go on."""
    with connected(app) as runlane:
        count = runlane.queues.pause(queue, tenant=tenant, concurrency_key=concurrency_key, actor=actor)
    _tell(
        {"queue": queue, "tenant": tenant, "concurrency_key": concurrency_key, "given_back": count},
        "paused: nothing more starts" + (f", {counted(count, 'unclaimed run')} put back" if count else ""),
        as_json,
    )


@application.command()
def resume(
    queue: Queue, tenant: Tenant = None, concurrency_key: Key = None, actor: Actor = "cli", app: AppPath = None, as_json: AsJson = False
) -> None:
    """Undo the same pause, and send on its way what has capacity."""
    with connected(app) as runlane:
        count = runlane.queues.resume(queue, tenant=tenant, concurrency_key=concurrency_key, actor=actor)
    _tell(
        {"queue": queue, "tenant": tenant, "concurrency_key": concurrency_key, "published": count},
        f"resumed: {counted(count, 'run')} sent on the way" if count else "resumed: no run waited that could start",
        as_json,
    )


def _tell(document: dict[str, object], text: str, as_json: bool) -> None:
    from rich.text import Text

    answer(document, as_json, lambda: Text(text))


def _table(found: tuple[QueueStats, ...]) -> RenderableType:
    columns = ["queue", "#waiting", "#scheduled", "#due", "#dispatched", "#running", "#oldest due", "#partitions", "blocked"]
    return table(columns, map(_row, found), empty="no queue is registered")


_BLOCKS = {"paused": "a pause", "window": "dispatch_window"}


def _row(queue: QueueStats) -> list[object]:
    blocked = ", ".join(f"{counted(count, 'key')} by {_BLOCKS.get(reason, reason)}" for reason, count in queue.blocked.items())
    return [
        queue.queue, queue.waiting, queue.scheduled, queue.due, queue.dispatched, queue.running, queue.oldest_due_for, queue.partitions,
        "paused" if queue.paused else blocked or None,
    ]  # fmt: skip
