"""`runlane queues`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.completion import complete_queue
from runlane.cli.connect import connected
from runlane.cli.filters import Key, Tenant
from runlane.cli.manual import epilog
from runlane.cli.options import Actor, AppPath, AsJson, Every, QueueName, Watch
from runlane.cli.output import answer, counted, table
from runlane.cli.watch import View, interval, watch

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runlane.domain.records import QueueStats
    from runlane.runtime import Runlane

application = typer.Typer(help="Depth, age and blocked keys of queues; pause, resume and weigh.", no_args_is_help=True)

Names = Annotated[list[str] | None, typer.Argument(help="Names; default all.", metavar="QUEUE", autocompletion=complete_queue)]


@application.command(epilog=epilog("queues stats"))
def stats(names: Names = None, watching: Watch = False, every: Every = "1s", app: AppPath = None, as_json: AsJson = False) -> None:
    """What waits, since when, what runs, and what is blocked by what; from counters."""
    pause = interval(every)
    with connected(app) as runlane:
        if watching:
            watch(_view(runlane, names or ()), pause, as_json=as_json)
            return
        found = runlane.queues.stats(*(names or ()))
    answer({"data": found}, as_json, lambda: _table(found), _next(found))


@application.command(epilog=epilog("queues pause"))
def pause(
    queue: QueueName, tenant: Tenant = None, concurrency_key: Key = None, actor: Actor = "cli", app: AppPath = None, as_json: AsJson = False
) -> None:
    """Start nothing more of a queue, of one tenant or of one key; running runs go on."""
    with connected(app) as runlane:
        count = runlane.queues.pause(queue, tenant=tenant, concurrency_key=concurrency_key, actor=actor)
    _tell(
        {"queue": queue, "tenant": tenant, "concurrency_key": concurrency_key, "given_back": count},
        "paused: nothing more starts" + (f", {counted(count, 'unclaimed run')} put back" if count else ""),
        as_json,
        ["runlane", "queues", "resume", queue, *_of(tenant, concurrency_key)],
    )


@application.command(epilog=epilog("queues resume"))
def resume(
    queue: QueueName, tenant: Tenant = None, concurrency_key: Key = None, actor: Actor = "cli", app: AppPath = None, as_json: AsJson = False
) -> None:
    """Undo the same pause, and send on its way what has capacity."""
    with connected(app) as runlane:
        count = runlane.queues.resume(queue, tenant=tenant, concurrency_key=concurrency_key, actor=actor)
    _tell(
        {"queue": queue, "tenant": tenant, "concurrency_key": concurrency_key, "published": count},
        f"resumed: {counted(count, 'run')} sent on the way" if count else "resumed: no run waited that could start",
        as_json,
        ["runlane", "queues", "stats", queue, "--watch"],
    )


@application.command(epilog=epilog("queues weight"))
def weight(
    queue: QueueName,
    tenant: Annotated[str, typer.Argument(help="The tenant.", metavar="TENANT")],
    weight: Annotated[int, typer.Argument(help="Its share beside the others', which have 1 unless told otherwise.", metavar="WEIGHT")],
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Give a tenant a larger share of a queue."""
    with connected(app) as runlane:
        runlane.queues.set_weight(queue, tenant, weight)
    _tell(
        {"queue": queue, "tenant": tenant, "weight": weight},
        f"weighted: {counted(weight, 'turn')} of this tenant for one of a tenant without a weight",
        as_json,
    )


def _tell(document: dict[str, object], text: str, as_json: bool, then: Sequence[str] = ()) -> None:
    from rich.text import Text

    answer(document, as_json, lambda: Text(text), then)


def _of(tenant: str | None, concurrency_key: str | None) -> list[str]:
    given = {"--tenant": tenant, "--key": concurrency_key}
    return [word for option, value in given.items() if value is not None for word in (option, value)]


def _view(runlane: Runlane, names: Sequence[str]) -> View[tuple[QueueStats, ...]]:
    return View(
        read=lambda: runlane.queues.stats(*names),
        screen=_table,
        lines=lambda found: map(_line, found),
        document=lambda found: {"data": found},
        # An age grows at every look, which is no change.
        state=lambda found: [replace(queue, oldest_due_for=None) for queue in found],
    )


def _line(queue: QueueStats) -> str:
    counts = {name: getattr(queue, name) for name in ("waiting", "scheduled", "due", "dispatched", "running")}
    blocked = _blocked(queue)
    return "  ".join([queue.queue, *(f"{name} {count}" for name, count in counts.items()), *([f"blocked: {blocked}"] if blocked else [])])


def _next(found: Sequence[QueueStats]) -> list[str]:
    if paused := next((queue for queue in found if queue.paused), None):
        return ["runlane", "queues", "resume", paused.queue]
    return []


def _table(found: tuple[QueueStats, ...]) -> RenderableType:
    columns = ["queue", "#waiting", "#scheduled", "#due", "#dispatched", "#running", "#oldest", "#keys", "blocked"]
    return table(columns, map(_row, found), empty="no queue is registered")


_BLOCKS = {"paused": "a pause", "throttled": "the throttle", "window": "dispatch_window"}


def _row(queue: QueueStats) -> list[object]:
    return [
        queue.queue, queue.waiting, queue.scheduled, queue.due, queue.dispatched, queue.running, queue.oldest_due_for, queue.partitions,
        _blocked(queue),
    ]  # fmt: skip


def _blocked(queue: QueueStats) -> str | None:
    blocked = ", ".join(f"{counted(count, 'key')} by {_BLOCKS.get(reason, reason)}" for reason, count in queue.blocked.items())
    return "paused" if queue.paused else blocked or None
