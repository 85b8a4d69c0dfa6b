"""Waiting runs made due: rows grow old, no clock is faked."""

from __future__ import annotations

from collections.abc import Iterator

from runlane.adapters.postgres.aging import PostgresAging
from runlane.domain.errors import ContractError
from runlane.domain.ids import RunId, parse_run_id
from runlane.domain.records import RunSummary
from runlane.domain.run import Status
from runlane.runtime import Runlane
from runlane.services.operate.runs import LARGEST_PAGE
from runlane.services.payload import AnyTask
from runlane.services.trigger import TriggerResult
from runlane.testing.lane import IsolatedLane

FOR_LATER = frozenset({Status.SCHEDULED, Status.RETRYING, Status.RELEASED})


def make_due(runlane: Runlane, *runs: RunSummary | TriggerResult | str, task: AnyTask | None = None) -> tuple[RunId, ...]:
    """Let runs that wait for a delay, a retry or a release be due now, as if that time had passed; those that did.

    runs: records, trigger results or ids; with none of them every waiting run, of `task` if it is given.
    Only their due times change: idempotency keys, time-outs and other runs do not get older. Nothing is executed: call `drain`.
    Raises `ContractError` `not_isolated` unless the runtime is on a test's own database (the `runlane` fixture, or `on_database`).
    """
    aging = aging_of(runlane)
    return aging.make_due([_id_of(run) for run in runs] or list(_waiting(runlane, task)))


def aging_of(runlane: Runlane) -> PostgresAging:
    lane = runlane.lane
    if not isinstance(lane, IsolatedLane) or lane.aging is None:
        raise ContractError("not_isolated", "runlane: is not on a test's own database; take the `runlane` fixture, or use `on_database`")
    return lane.aging


def _id_of(run: RunSummary | TriggerResult | str) -> RunId:
    if isinstance(run, str):
        return parse_run_id(run)
    return run.run_id if isinstance(run, RunSummary) else run.run.run_id


def _waiting(runlane: Runlane, task: AnyTask | None) -> Iterator[RunId]:
    cursor: str | None = None
    while True:
        page = runlane.runs.list(status=FOR_LATER, task=task, limit=LARGEST_PAGE, cursor=cursor)
        yield from (run.run_id for run in page.data)
        if (cursor := page.next_cursor) is None:
            return
