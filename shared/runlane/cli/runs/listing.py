"""`runlane runs list`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.connect import connected
from runlane.cli.filters import (
    CreatedAfter,
    CreatedBefore,
    Cursor,
    Filters,
    Key,
    QueueFilter,
    SourceFilter,
    Statuses,
    TaskId,
    Tenant,
    filters,
)
from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer, table
from runlane.cli.text import command_line
from runlane.domain.nearest import did_you_mean
from runlane.domain.records import RunSummary

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runlane.domain.records import Page

PAGE = 50


def list_runs(
    status: Statuses = None,
    task: TaskId = None,
    queue: QueueFilter = None,
    tenant: Tenant = None,
    concurrency_key: Key = None,
    source: SourceFilter = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    limit: Annotated[int, typer.Option(help="1 to 200 a page.", metavar="COUNT")] = PAGE,
    cursor: Cursor = None,
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Runs, newest first."""
    chosen = filters(status, task, queue, tenant, concurrency_key, source, created_after, created_before)
    with connected(app) as runlane:
        page = runlane.runs.list(**chosen.options(), limit=limit, cursor=cursor)
        empty = _empty(chosen, tuple(runlane.tasks))
    then = _next(chosen, limit, page.next_cursor)
    document = {"data": page.data, "next_cursor": page.next_cursor, "next": command_line(then) or None}
    answer(document, as_json, lambda: _page(page, empty), then)


def _next(chosen: Filters, limit: int, cursor: str | None) -> list[str]:
    size = [] if limit == PAGE else ["--limit", str(limit)]
    return [] if cursor is None else ["runlane", "runs", "list", *chosen.words(), *size, "--cursor", cursor]


def _empty(chosen: Filters, tasks: tuple[str, ...]) -> str:
    """A task may have left the application and its runs may be kept, so that an unknown one is no error."""
    if chosen.task is not None and chosen.task not in tasks:
        return f"no run matches; the application has no task {chosen.task!r}{did_you_mean(chosen.task, tasks)}"
    return "no run matches"


def _page(page: Page, empty: str) -> RenderableType:
    now = datetime.now(UTC)
    columns = {name: [show(run, now) for run in page.data] for name, show in _COLUMNS.items()}
    shown = {name: cells for name, cells in columns.items() if name not in _OFTEN_EMPTY or any(cells)}
    return table(list(shown), zip(*shown.values(), strict=True), empty=empty)


_COLUMNS: dict[str, Callable[[RunSummary, datetime], object]] = {
    "run": lambda run, now: run.run_id,
    "status": lambda run, now: run.status,
    "task": lambda run, now: run.task,
    "queue": lambda run, now: run.queue,
    "tenant": lambda run, now: run.tenant,
    "key": lambda run, now: run.concurrency_key,
    "#attempt": lambda run, now: run.attempt,
    # The database's clock may be ahead of this one.
    "#age": lambda run, now: max(now - run.created_at, timedelta()),
}
_OFTEN_EMPTY = ("tenant", "key")
