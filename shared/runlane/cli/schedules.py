"""`runlane schedules`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.completion import complete_schedule
from runlane.cli.connect import connected
from runlane.cli.manual import epilog
from runlane.cli.options import Actor, AppPath, AsJson
from runlane.cli.output import answer, cell, counted, span, table
from runlane.cli.runs.single import following
from runlane.domain.records import ScheduleState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runlane.domain.records import ScheduleRecord

application = typer.Typer(help="Schedules in force: when they fire; pause, resume, and a run at once.", no_args_is_help=True)

ScheduleId = Annotated[str, typer.Argument(help="The schedule's id.", metavar="SCHEDULE", autocompletion=complete_schedule)]
Count = Annotated[int, typer.Option("--count", help="How many; at most 1000.", metavar="COUNT")]


@application.command("list", epilog=epilog("schedules list"))
def list_schedules(app: AppPath = None, as_json: AsJson = False) -> None:
    """Every schedule in force, with its last and its next fire."""
    with connected(app) as runlane:
        found = runlane.schedules.list()
    columns = ["schedule", "state", "task", "queue", "when", "last fire", "next fire"]
    empty = "no schedule is in force; `runlane migrate` stores those of the code"
    answer({"data": found}, as_json, lambda: table(columns, map(_row, found), empty=empty), _next(found))


@application.command(epilog=epilog("schedules next"))
def next(schedule: ScheduleId, count: Count = 5, app: AppPath = None, as_json: AsJson = False) -> None:
    """When it fires next, and when its runs are due: later by the jitter. A paused one: when it would."""
    with connected(app) as runlane:
        fires = runlane.schedules.next(schedule, count)
    rows = ((fire.fire_at, fire.due_at) for fire in fires)
    answer({"data": fires}, as_json, lambda: table(["fire", "due"], rows, empty="it does not fire any more"))


@application.command(epilog=epilog("schedules pause"))
def pause(schedule: ScheduleId, actor: Actor = "cli", app: AppPath = None, as_json: AsJson = False) -> None:
    """Fire no more until it is resumed. Runs that are due or run already go on."""
    with connected(app) as runlane:
        paused = runlane.schedules.pause(schedule, actor=actor)
    text = "paused: it fires no more" + (f", {counted(paused.cancelled, 'run')} made ahead cancelled" if paused.cancelled else "")
    _tell(
        {"schedule_id": schedule, "cancelled": paused.cancelled},
        text,
        as_json,
        ["runlane", "schedules", "resume", schedule],
    )


@application.command(epilog=epilog("schedules resume"))
def resume(schedule: ScheduleId, actor: Actor = "cli", app: AppPath = None, as_json: AsJson = False) -> None:
    """Fire again, from now on; nothing of the pause is made up for."""
    with connected(app) as runlane:
        record = runlane.schedules.resume(schedule, actor=actor)
    text = f"resumed: {record.state}, next fire {cell(record.next_fire_at)}"
    document = {"schedule_id": schedule, "state": record.state, "next_fire_at": record.next_fire_at}
    _tell(document, text, as_json, ["runlane", "schedules", "next", schedule])


@application.command(epilog=epilog("schedules trigger"))
def trigger(schedule: ScheduleId, actor: Actor = "cli", app: AppPath = None, as_json: AsJson = False) -> None:
    """Make a run of it now, beside its fires, paused or not."""
    with connected(app) as runlane:
        made = runlane.schedules.trigger(schedule, actor=actor)
    document = {"schedule_id": schedule, "run_id": made.run.run_id, "outcome": made.outcome, "status": made.run.status}
    _tell(document, f"{made.run.run_id}  {made.outcome}, {made.run.status}", as_json, following(made.run.run_id, made.run.status))


def _tell(document: Mapping[str, object], text: str, as_json: bool, then: Sequence[str]) -> None:
    from rich.text import Text

    answer(document, as_json, lambda: Text(text), then)


def _row(record: ScheduleRecord) -> list[object]:
    return [record.schedule_id, record.state, record.task, record.queue, _when(record), record.last_fire_at, record.next_fire_at]


def _when(record: ScheduleRecord) -> str | None:
    if record.cron is not None:
        return f"{record.cron} {record.timezone}"
    if record.every is not None:
        return f"every {span(record.every)}"
    return None if record.run_at is None else f"at {cell(record.run_at)}"


def _next(found: Sequence[ScheduleRecord]) -> list[str]:
    if paused := [record.schedule_id for record in found if record.state is ScheduleState.PAUSED]:
        return ["runlane", "schedules", "resume", paused[0]]
    return ["runlane", "schedules", "next", found[0].schedule_id] if found else []
