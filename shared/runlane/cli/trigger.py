"""`runlane trigger`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.completion import complete_queue
from runlane.cli.connect import connected
from runlane.cli.options import Actor, AppPath, AsJson, TaskName
from runlane.cli.output import answer, console, suggest
from runlane.cli.payload import read_payload
from runlane.cli.runs.single import document, following, sheet
from runlane.cli.text import clean
from runlane.domain.durations import parse_duration
from runlane.domain.errors import ContractError
from runlane.domain.nearest import did_you_mean
from runlane.domain.options import SingletonMode
from runlane.domain.run import Status
from runlane.domain.shown import shown

if TYPE_CHECKING:
    from runlane.domain.records import RunRecord
    from runlane.runtime import Runlane
    from runlane.services.options import RunNowOptions
    from runlane.services.payload import AnyTask
    from runlane.services.trigger import TriggerResult

Payload = Annotated[str, typer.Argument(help="JSON; @FILE reads a file, - the standard input.", metavar="PAYLOAD")]
Now = Annotated[bool, typer.Option("--now", help="Make the first attempt here, in this process, and answer with the run.")]
Wait = Annotated[str | None, typer.Option(help="Wait this long for the end, and answer with the run.", metavar="DURATION")]


def trigger(
    task: TaskName,
    payload: Payload = "{}",
    queue: Annotated[str | None, typer.Option(help="Instead of the task's.", metavar="QUEUE", autocompletion=complete_queue)] = None,
    delay: Annotated[str | None, typer.Option(help="Start no sooner, e.g. 30s.", metavar="DURATION")] = None,
    priority: Annotated[int | None, typer.Option(help="Seconds ahead of its own partition, -600 to 600.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose fair share it uses.")] = None,
    concurrency_key: Annotated[str | None, typer.Option("--key", help="The concurrency key.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key again makes no second run.")] = None,
    singleton_key: Annotated[str | None, typer.Option(help="At most one active run of this key.")] = None,
    singleton_mode: Annotated[
        SingletonMode | None, typer.Option(help="If one is active: return it, cancel it, or run as its latest successor.", metavar="MODE")
    ] = None,
    actor: Actor = "cli",
    now: Now = False,
    wait: Wait = None,
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Record a run and send it on its way. With --now or --wait the answer is that of `runs show`, and a failure of the run is one."""
    content = read_payload(payload)
    if wait is not None:
        parse_duration(wait, "--wait")
        _require(not now, "--wait: --now has waited already; give one of the two")
    options: RunNowOptions = {
        "queue": queue,
        "priority": priority,
        "tenant": tenant,
        "concurrency_key": concurrency_key,
        "idempotency_key": idempotency_key,
        "singleton_key": singleton_key,
        "singleton_mode": singleton_mode,
        "actor": actor,
    }
    with connected(app) as runlane:
        known = _task(runlane, task)
        if now:
            _require(delay is None, "--delay: a run now is due now; give one of the two")
            _run_now(runlane, known, content, options, as_json)
            return
        result = runlane.trigger(known, content, delay=delay, **options)
        if wait is None:
            answer(_document(result), as_json, lambda: _text(result), following(result.run.run_id, result.run.status))
        else:
            _wait(runlane, result, wait, as_json)


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise ContractError("option_invalid", fault, meta={"field": fault.partition(":")[0]})


def _run_now(runlane: Runlane, task: AnyTask, payload: Any, options: RunNowOptions, as_json: bool) -> None:
    # What the handler prints must not get into the answer.
    with redirect_stdout(sys.stderr):
        made = runlane.run_now(task, payload, **options)
    _show(runlane, made.run, as_json)
    if made.failure is not None or made.run.status in (Status.FAILED, Status.CANCELLED):
        raise typer.Exit(1)


def _task(runlane: Runlane, name: str) -> AnyTask:
    if name not in runlane.tasks:
        known = ", ".join(runlane.tasks) or "none"
        raise ContractError("task_unknown", f"TASK: there is no task {shown(name)}; there are: {known}{did_you_mean(name, runlane.tasks)}")
    return runlane.tasks[name]


def _document(result: TriggerResult) -> dict[str, Any]:
    run = result.run
    return {
        "run_id": run.run_id,
        "outcome": result.outcome,
        "task": run.task,
        "queue": run.queue,
        "status": run.status,
        "due_at": run.due_at,
        "payload_matches": result.payload_matches,
    }


def _text(result: TriggerResult) -> Any:
    from rich.text import Text

    owner = " by another payload" if result.payload_matches is False else ""
    return Text(f"{result.run.run_id}  {result.outcome}{owner}, {result.run.status} on {clean(result.run.queue)}")


def _wait(runlane: Runlane, result: TriggerResult, timeout: str, as_json: bool) -> None:
    try:
        run = runlane.runs.wait(result.run.run_id, timeout)
    except KeyboardInterrupt:
        suggest(console(stderr=True), following(result.run.run_id), "the run goes on")
        raise
    _show(runlane, run, as_json)
    if run.status is not Status.SUCCEEDED:
        raise typer.Exit(1)


def _show(runlane: Runlane, run: RunRecord, as_json: bool) -> None:
    attempts = runlane.runs.attempts(run.run_id)
    answer(document(run, attempts), as_json, lambda: sheet(run, attempts), following(run.run_id, run.status))
