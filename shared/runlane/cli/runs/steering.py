"""`runlane runs cancel`, `retry` and `rerun`: of runs named by id, or of all that a filter finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.bulk import Bulk, carry_out
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
from runlane.cli.options import Actor, AppPath, AsJson, DryRun, Limit, Reason, Yes
from runlane.cli.runs.named import each, tell
from runlane.domain.errors import ContractError
from runlane.domain.run import Status, TriggerOutcome

if TYPE_CHECKING:
    from runlane.runtime import Runlane
    from runlane.services.operate.runs import Runs
    from runlane.services.trigger import TriggerResult

RunIds = Annotated[list[str] | None, typer.Argument(help="The runs' ids; or give filters.", metavar="RUN_ID")]
All = Annotated[bool, typer.Option("--all", help="Every run, where no filter is given.")]


@dataclass(frozen=True, slots=True)
class Verb:
    """`one(runs, run_id, actor=…, reason=…)` moves one run and answers what became of it, which `say` puts into words."""

    name: str
    done: str
    help: str
    one: Callable[..., dict[str, Any]]
    say: Callable[[dict[str, Any]], str]


def command(verb: Verb) -> Callable[..., None]:
    """The command of a verb; they differ in nothing but what is done to a run."""

    def steer(
        run_ids: RunIds = None,
        status: Statuses = None,
        task: TaskId = None,
        queue: QueueFilter = None,
        tenant: Tenant = None,
        concurrency_key: Key = None,
        source: SourceFilter = None,
        created_after: CreatedAfter = None,
        created_before: CreatedBefore = None,
        everything: All = False,
        dry_run: DryRun = False,
        yes: Yes = False,
        limit: Limit = None,
        cursor: Cursor = None,
        reason: Reason = None,
        actor: Actor = "cli",
        app: AppPath = None,
        as_json: AsJson = False,
    ) -> None:
        chosen = filters(status, task, queue, tenant, concurrency_key, source, created_after, created_before)
        _require_one_choice(verb, run_ids, chosen, everything=everything, sized=dry_run or limit is not None or cursor is not None)
        with connected(app) as runlane:
            if run_ids:
                steered = each(run_ids, partial(verb.one, runlane.runs, actor=actor, reason=reason))
            else:
                bulk = _bulk(runlane, verb, chosen, everything, actor, reason, limit, cursor)
                carry_out(bulk, dry_run=dry_run, yes=yes, as_json=as_json)
                return
        tell(steered, verb.say, as_json)

    steer.__doc__ = verb.help
    return steer


def _require_one_choice(verb: Verb, run_ids: Sequence[str] | None, chosen: Filters, *, everything: bool, sized: bool) -> None:
    by_filter = everything or not chosen.is_empty
    if run_ids and (by_filter or sized):
        raise ContractError("option_invalid", "RUN_ID and filters (and --all, --dry-run, --limit, --cursor) exclude each other; give one")
    if not run_ids and not by_filter:
        example = "--task TASK --created-after 2h"
        raise ContractError("filter_missing", f"no run is named; give ids, or filters such as {example}, or --all to {verb.name} every run")
    if everything and not chosen.is_empty:
        raise ContractError("option_invalid", "--all and filters exclude each other; give one")


def _bulk(
    runlane: Runlane, verb: Verb, chosen: Filters, everything: bool, actor: str, reason: str | None, limit: int | None, cursor: str | None
) -> Bulk:
    many = {"cancel": runlane.runs.cancel_many, "retry": runlane.runs.retry_many, "rerun": runlane.runs.rerun_many}[verb.name]
    told = {"--reason": reason, "--actor": None if actor == "cli" else actor}
    words = [word for option, value in told.items() if value is not None for word in (option, value)]
    return Bulk(
        partial(many, **chosen.options(), everything=everything, actor=actor, reason=reason),
        ("runlane", "runs", verb.name, *chosen.words(), *(["--all"] if everything else []), *words),
        verb.name,
        verb.done,
        limit,
        cursor,
    )


def _cancel(runs: Runs, run_id: str, **told: Any) -> dict[str, Any]:
    return {"status": runs.cancel(run_id, **told)}


def _retry(runs: Runs, run_id: str, **told: Any) -> dict[str, Any]:
    return _child(runs.retry(run_id, **told))


def _rerun(runs: Runs, run_id: str, **told: Any) -> dict[str, Any]:
    return _child(runs.rerun(run_id, **told))


def _child(made: TriggerResult) -> dict[str, Any]:
    return {"status": made.run.status, "outcome": made.outcome, "child_run_id": made.run.run_id}


def _cancelled(entry: dict[str, Any]) -> str:
    if entry["status"] is Status.CANCELLATION_REQUESTED:
        return "cancellation requested: the run is told within seconds"
    return "cancelled" if entry["status"] is Status.CANCELLED else f"nothing to cancel: the run had already {entry['status']}"


def _made(entry: dict[str, Any]) -> str:
    if entry["outcome"] is TriggerOutcome.CREATED:
        return f"made again as {entry['child_run_id']}, {entry['status']}"
    return f"not made again: {entry['child_run_id']} owns its singleton key and is {entry['status']}"


CANCEL = Verb("cancel", "cancelled", "End waiting runs at once; ask running ones to stop.", _cancel, _cancelled)
RETRY = Verb("retry", "retried", "Make failed runs again, each once, with the payload, the tenant and the keys that it had.", _retry, _made)
RERUN = Verb("rerun", "made again", "Make ended runs again, however they ended, as often as it is asked for.", _rerun, _made)
