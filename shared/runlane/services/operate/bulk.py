"""One move on many runs: batch by batch, a transaction each, so that it can be watched, interrupted and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from runlane.domain.errors import ContractError
from runlane.domain.ids import RunId
from runlane.domain.records import RunFilter
from runlane.domain.run import Status
from runlane.domain.shown import shown
from runlane.ports.clock import Clock
from runlane.ports.stores import RunStore
from runlane.services.operate.arguments import invalid
from runlane.services.operate.patience import patiently

BATCH = 100
MOST_REFUSED = 100


@dataclass(frozen=True, slots=True)
class BulkReport:
    """Of `matched` runs `done` were moved (in a dry run: would be); `refused` names the first hundred others, each with a code.

    `next_cursor`, given back with the same filter, goes on where this ended; None: everything was looked at.
    """

    matched: int = 0
    done: int = 0
    refused: tuple[tuple[RunId, str], ...] = ()
    next_cursor: str | None = None


Progress = Callable[[BulkReport], object]
"""Called after each batch with all that was done so far."""

Act = Callable[[Sequence[RunId]], Mapping[RunId, str]]
"""Moves runs in one transaction and answers those that were refused, with their codes."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a move on many goes."""

    limit: int | None
    cursor: str | None
    on_progress: Progress | None


class Sweep:
    def __init__(self, store: RunStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def sweep(self, chosen: RunFilter, act: Act, extent: Extent) -> BulkReport:
        """Newest first: runs that are made meanwhile are not met."""
        report = BulkReport(next_cursor=extent.cursor)
        while size := _size(report, extent.limit):
            page = self._store.list_runs(chosen, limit=size, cursor=report.next_cursor)
            run_ids = [run.run_id for run in page.data]
            refused = patiently(self._clock, partial(act, run_ids)) if run_ids else {}
            report = BulkReport(
                report.matched + len(run_ids),
                report.done + len(run_ids) - len(refused),
                (*report.refused, *refused.items())[:MOST_REFUSED],
                page.next_cursor,
            )
            if extent.on_progress is not None:
                extent.on_progress(report)
            if page.next_cursor is None:
                break
        return report


def require_extent(limit: int | None) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise invalid("limit", f"{shown(limit)} is no whole number of at least 1")


def require_chosen(given: Mapping[str, object], *, everything: bool) -> None:
    """`ContractError` `filter_missing`: a move on all runs must be asked for in so many words."""
    if not everything and all(value is None for value in given.values()):
        raise ContractError("filter_missing", "no filter is given; give one, or everything=True if you mean all runs")


def require_statuses(chosen: frozenset[Status] | None, allowed: frozenset[Status], verb: str) -> frozenset[Status]:
    """The statuses to look for: those that can be moved, unless fewer are asked for."""
    if chosen is None:
        return allowed
    if not chosen:
        raise invalid("status", f"no status is given; give some of {', '.join(sorted(allowed))}, or leave it out for all of them")
    if wrong := sorted(chosen - allowed):
        raise invalid("status", f"a run that is {wrong[0]} cannot be {verb}; give {', '.join(sorted(allowed))}")
    return chosen


def _size(report: BulkReport, limit: int | None) -> int:
    return BATCH if limit is None else min(BATCH, limit - report.matched)
