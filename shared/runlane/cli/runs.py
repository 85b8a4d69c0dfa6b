"""`runlane runs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.connect import connected
from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer, cell, plain, table
from runlane.domain.durations import parse_duration
from runlane.domain.outcome import Failure
from runlane.domain.run import AttemptRecord, EventRecord, RunRecord, RunSummary, Status

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runlane.ports.stores import Page

application = typer.Typer(help="Look at runs and their histories; cancel them.", no_args_is_help=True)

RunId = Annotated[str, typer.Argument(help="The run's id.", metavar="RUN_ID")]


@application.command("list")
def list_runs(
    status: Annotated[list[Status] | None, typer.Option(help="One of these statuses; may be repeated.")] = None,
    task: Annotated[str | None, typer.Option(help="The task's id.")] = None,
    queue: Annotated[str | None, typer.Option(help="The queue's name.")] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant.")] = None,
    concurrency_key: Annotated[str | None, typer.Option("--key", help="The concurrency key.")] = None,
    since: Annotated[str | None, typer.Option(help="Triggered within this time, e.g. 1h.", metavar="DURATION")] = None,
    limit: Annotated[int, typer.Option(help="1 to 200 a page.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="The next page, as the last one named it.")] = None,
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Runs, newest first."""
    after = None if since is None else datetime.now(UTC) - parse_duration(since, "--since")
    with connected(app) as runlane:
        page = runlane.runs.list(
            status=status or None,
            task=task,
            queue=queue,
            tenant=tenant,
            concurrency_key=concurrency_key,
            created_after=after,
            limit=limit,
            cursor=cursor,
        )
    answer({"data": page.data, "next_cursor": page.next_cursor}, as_json, lambda: _page(page))


@application.command()
def show(run_id: RunId, app: AppPath = None, as_json: AsJson = False) -> None:
    """One run with its payload, result and attempts."""
    with connected(app) as runlane:
        run, attempts = runlane.runs.get(run_id), runlane.runs.attempts(run_id)
    answer(document(run, attempts), as_json, lambda: sheet(run, attempts))


@application.command()
def events(run_id: RunId, app: AppPath = None, as_json: AsJson = False) -> None:
    """The history of one run, oldest first."""
    with connected(app) as runlane:
        found = runlane.runs.events(run_id)
    answer({"data": found}, as_json, lambda: table(["#", "at", "event", "#attempt", "slots", "actor", "facts"], map(_event, found)))


@application.command()
def cancel(
    run_id: RunId,
    reason: Annotated[str | None, typer.Option(help="Why, for the history.")] = None,
    actor: Annotated[str, typer.Option(help="Who, for the history.")] = "cli",
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """End a waiting run at once; ask a running one to stop."""
    from rich.text import Text

    with connected(app) as runlane:
        status = runlane.runs.cancel(run_id, actor=actor, reason=reason)
    answer({"run_id": run_id, "status": status}, as_json, lambda: Text(_cancelled(status)))


def document(run: RunRecord, attempts: Sequence[AttemptRecord]) -> dict[str, Any]:
    return {**plain(run), "attempts": plain(attempts)}


def sheet(run: RunRecord, attempts: Sequence[AttemptRecord]) -> RenderableType:
    from rich.console import Group

    facts = [(field.name.replace("_", " "), _fact(getattr(run, field.name))) for field in fields(run)]
    rows = ((one.attempt, one.claimed_at, one.ended_at, one.outcome or "runs", _fact(one.failure), one.worker) for one in attempts)
    return Group(
        table(["run", run.run_id], ((name, value) for name, value in facts[1:] if value is not None)),
        table(["#attempt", "claimed", "ended", "outcome", "failure", "worker"], rows, empty="no attempt yet"),
    )


def _fact(value: Any) -> Any:
    return f"{value.type}: {value.message}" if isinstance(value, Failure) else value


def _page(page: Page) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    now = datetime.now(UTC)
    columns = {name: [show(run, now) for run in page.data] for name, show in _COLUMNS.items()}
    shown = {name: cells for name, cells in columns.items() if name not in _OFTEN_EMPTY or any(cells)}
    more = [Text(f"more: --cursor {page.next_cursor}", style="dim")] if page.next_cursor else []
    return Group(table(list(shown), zip(*shown.values(), strict=True), empty="no run matches"), *more)


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


def _event(event: EventRecord) -> list[object]:
    slots = None if event.slot_seq is None else f"{event.occupied} held (#{event.slot_seq})"
    time = event.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    return [event.sequence, time, event.type, event.attempt or None, slots, event.actor, _facts(event)]


def _facts(event: EventRecord) -> str | None:
    facts = dict(event.data or {})
    if failure := facts.pop("failure", None):
        facts["failure"] = f"{failure['type']}: {failure['message']}"
    return ", ".join(f"{name} {cell(value)}" for name, value in facts.items()) or None


def _cancelled(status: Status) -> str:
    if status is Status.CANCELLATION_REQUESTED:
        return "cancellation requested: the run is told within seconds"
    return "cancelled" if status is Status.CANCELLED else f"nothing to cancel: the run had already {status}"
