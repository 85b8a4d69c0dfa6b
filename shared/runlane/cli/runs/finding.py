"""`runlane runs find`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.connect import connected
from runlane.cli.options import AppPath, AsJson, TaskName
from runlane.cli.output import answer
from runlane.cli.runs.single import document, following, sheet
from runlane.domain.errors import ContractError, NotFoundError

if TYPE_CHECKING:
    from runlane.domain.records import RunRecord
    from runlane.runtime import Runlane

Singleton = Annotated[str | None, typer.Option("--singleton-key", help="The active run with this key.", metavar="KEY")]
Idempotency = Annotated[str | None, typer.Option("--idempotency-key", help="The run that owns this key.", metavar="KEY")]
Active = Annotated[bool, typer.Option("--active", help="With --idempotency-key: only if the run is still active.")]


def find(
    task: TaskName,
    singleton_key: Singleton = None,
    idempotency_key: Idempotency = None,
    active: Active = False,
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """The run that owns a key: the one that a trigger with the same key would answer with."""
    with connected(app) as runlane:
        run = _owner(runlane, task, singleton_key, idempotency_key, active=active)
        if run is None:
            raise NotFoundError("run_not_found", "no run owns this key; a trigger with it makes a new one", meta={"task": task})
        attempts = runlane.runs.attempts(run.run_id)
    answer(document(run, attempts), as_json, lambda: sheet(run, attempts), following(run.run_id, run.status))


def _owner(runlane: Runlane, task: str, singleton_key: str | None, idempotency_key: str | None, *, active: bool) -> RunRecord | None:
    if (singleton_key is None) == (idempotency_key is None):
        raise ContractError("option_invalid", "--singleton-key: give it or --idempotency-key, one of the two")
    if idempotency_key is not None and not active:
        return runlane.runs.find_current(task, idempotency_key=idempotency_key)
    return runlane.runs.find_active(task, singleton_key=singleton_key, idempotency_key=idempotency_key)
