"""`runlane runs show` and `runs events`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import UTC
from typing import TYPE_CHECKING, Any

from runlane.cli.connect import connected
from runlane.cli.options import AppPath, AsJson, Every, RunId, Watch
from runlane.cli.output import answer, cell, plain, table
from runlane.cli.watch import View, interval, watch
from runlane.domain.outcome import Failure
from runlane.domain.records import AttemptRecord, EventRecord, RunRecord
from runlane.domain.run import Status

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runlane.runtime import Runlane

Seen = tuple[RunRecord, tuple[AttemptRecord, ...]]


def show(run_id: RunId, watching: Watch = False, every: Every = "1s", app: AppPath = None, as_json: AsJson = False) -> None:
    """One run with its payload, result and attempts. --watch ends by itself when the run has ended."""
    pause = interval(every)
    with connected(app) as runlane:
        if watching:
            watch(_view(runlane, run_id), pause, as_json=as_json)
            return
        run, attempts = read(runlane, run_id)
    answer(document(run, attempts), as_json, lambda: sheet(run, attempts), following(run.run_id, run.status))


def events(run_id: RunId, app: AppPath = None, as_json: AsJson = False) -> None:
    """The history of one run, oldest first."""
    with connected(app) as runlane:
        found = runlane.runs.events(run_id)
    answer({"data": found}, as_json, lambda: table(["#", "at", "event", "#attempt", "slots", "actor", "facts"], map(_event, found)))


def read(runlane: Runlane, run_id: str) -> Seen:
    return runlane.runs.get(run_id), runlane.runs.attempts(run_id)


def document(run: RunRecord, attempts: Sequence[AttemptRecord]) -> dict[str, Any]:
    return {**plain(run), "attempts": plain(attempts)}


def sheet(run: RunRecord, attempts: Sequence[AttemptRecord]) -> RenderableType:
    from rich.console import Group

    rows = ((one.attempt, one.claimed_at, one.ended_at, one.outcome or "runs", _fact(one.failure), one.worker) for one in attempts)
    return Group(
        table(["run", run.run_id], _known(run, attempts)),
        table(["#attempt", "claimed", "ended", "outcome", "failure", "worker"], rows, empty="no attempt yet"),
    )


def _known(run: RunRecord, attempts: Sequence[AttemptRecord]) -> Iterator[tuple[str, Any]]:
    """A failure is the run's own when it has failed; before, it is that of its last attempt that failed."""
    for field in fields(run)[1:]:
        value = getattr(run, field.name)
        if value is not None:
            yield field.name.replace("_", " "), _fact(value)
        elif field.name == "failure" and not run.status.is_terminal and (failure := _last_failure(attempts)):
            yield "last failure", _fact(failure)


def following(run_id: str, status: Status = Status.QUEUED) -> list[str]:
    """What somebody who looks at this run most likely wants next."""
    return ["runlane", "runs", "events", run_id] if status.is_terminal else ["runlane", "runs", "show", run_id, "--watch"]


def _view(runlane: Runlane, run_id: str) -> View[Seen]:
    return View(
        read=lambda: read(runlane, run_id),
        screen=lambda seen: sheet(*seen),
        lines=lambda seen: _lines(*seen),
        document=lambda seen: document(*seen),
        is_over=lambda seen: seen[0].status.is_terminal,
    )


def _lines(run: RunRecord, attempts: Sequence[AttemptRecord]) -> Iterator[str]:
    parts = [run.run_id, run.status.value, f"attempt {run.attempt}"]
    if run.status.is_waiting:
        parts.append(f"due {cell(run.due_at)}")
    if failure := _last_failure(attempts):
        parts.append(str(_fact(failure)))
    yield "  ".join(parts)


def _last_failure(attempts: Sequence[AttemptRecord]) -> Failure | None:
    return next((attempt.failure for attempt in reversed(attempts) if attempt.failure is not None), None)


def _fact(value: Any) -> Any:
    return f"{value.type}: {value.message}" if isinstance(value, Failure) else value


def _event(event: EventRecord) -> list[object]:
    slots = None if event.slot_seq is None else f"{event.occupied} held (#{event.slot_seq})"
    time = event.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    return [event.sequence, time, event.type, event.attempt or None, slots, event.actor, _facts(event)]


def _facts(event: EventRecord) -> str | None:
    facts = dict(event.data or {})
    if failure := facts.pop("failure", None):
        facts["failure"] = f"{failure['type']}: {failure['message']}"
    return ", ".join(f"{name} {cell(value)}" for name, value in facts.items()) or None
