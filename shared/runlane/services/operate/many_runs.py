"""Many runs at a time, by filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from runlane.domain.durations import Duration, parse_duration
from runlane.domain.ids import RunId
from runlane.domain.queue import Queue
from runlane.domain.records import RunFilter
from runlane.domain.registry import QueueRegistry
from runlane.domain.run import TERMINAL, Source, Status, TriggerOutcome, Verb, transition
from runlane.ports.clock import Clock
from runlane.ports.operations import OperationStore, PruneFilter
from runlane.ports.stores import RunStore
from runlane.services.operate.arguments import TaskName, checked_key, checked_reason, checked_statuses, queue_name, task_name
from runlane.services.operate.bulk import Act, BulkReport, Extent, Progress, Sweep, require_chosen, require_extent, require_statuses
from runlane.services.operate.children import Children, Wish, wish_of
from runlane.services.operate.filters import RunFilters, run_filter
from runlane.services.operate.prune import prune
from runlane.services.publish import Publisher

_CANCELLABLE = frozenset(status for status in Status if transition(status, Verb.CANCEL))


class ManyRuns:
    """The part of `Runs` that moves many."""

    def __init__(
        self,
        store: RunStore,
        operations: OperationStore,
        children: Children,
        publisher: Publisher,
        queues: QueueRegistry,
        clock: Clock,
    ) -> None:
        self._operations = operations
        self._children = children
        self._publisher = publisher
        self._queues = queues
        self._sweep = Sweep(store, clock)

    def cancel_many(
        self,
        *,
        everything: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        cursor: str | None = None,
        on_progress: Progress | None = None,
        **filters: Unpack[RunFilters],
    ) -> BulkReport:
        """Cancel the runs that match the filters of `list`, newest first, a hundred a transaction; of any status that can be cancelled.

        `everything=True` stands for a filter. At most `limit` runs are matched; `next_cursor` of a report, given back with the same
        filters, goes on after it. `on_progress` is called with the report so far after each transaction. A dry run writes nothing.
        """
        told, why = checked_key(actor, "actor"), checked_reason(reason)
        act: Act = _nothing if dry_run else lambda run_ids: self._cancelled(run_ids, told, why)
        chosen = self._chosen(filters, everything, _CANCELLABLE, "cancelled")
        return self._sweep.sweep(chosen, act, _extent(limit, cursor, on_progress))

    def retry_many(
        self,
        *,
        everything: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        cursor: str | None = None,
        on_progress: Progress | None = None,
        **filters: Unpack[RunFilters],
    ) -> BulkReport:
        """`retry` the failed runs that match, as `cancel_many` goes about it. However often at once, each is retried once."""
        return self._again(wish_of(Source.MANUAL_RETRY, actor, reason), filters, everything, dry_run, _extent(limit, cursor, on_progress))

    def rerun_many(
        self,
        *,
        everything: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        cursor: str | None = None,
        on_progress: Progress | None = None,
        **filters: Unpack[RunFilters],
    ) -> BulkReport:
        """`rerun` the ended runs that match, as `cancel_many` goes about it. After an interruption go on with the last report's cursor."""
        return self._again(wish_of(Source.RERUN, actor, reason), filters, everything, dry_run, _extent(limit, cursor, on_progress))

    def prune(
        self,
        *,
        older_than: Duration,
        statuses: Iterable[Status | str] = tuple(sorted(TERMINAL)),
        task: TaskName | None = None,
        queue: Queue | str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> BulkReport:
        """Delete runs that ended longer ago, with their histories, oldest first, five hundred a transaction; `done` is how many.

        The owner of an idempotency key stays until the key's time is up. Children keep the id of a source that is gone.
        """
        require_extent(limit)
        ended = require_statuses(checked_statuses(statuses), TERMINAL, "pruned")
        chosen = PruneFilter(
            parse_duration(older_than, "older_than"),
            ended,
            None if task is None else task_name(task),
            None if queue is None else queue_name(self._queues, queue),
        )
        return prune(self._operations, chosen, limit=limit, dry_run=dry_run, on_progress=on_progress)

    def _chosen(self, filters: RunFilters, everything: bool, allowed: frozenset[Status], verb: str) -> RunFilter:
        require_chosen(filters, everything=everything)
        chosen = run_filter(self._queues, **filters)
        return replace(chosen, statuses=require_statuses(chosen.statuses, allowed, verb))

    def _again(self, wish: Wish, filters: RunFilters, everything: bool, dry_run: bool, extent: Extent) -> BulkReport:
        def act(run_ids: Sequence[RunId]) -> Mapping[RunId, str]:
            return self._made_again(run_ids, wish, dry_run=dry_run)

        return self._sweep.sweep(self._chosen(filters, everything, wish.statuses, wish.verb), act, extent)

    def _made_again(self, run_ids: Sequence[RunId], wish: Wish, *, dry_run: bool) -> Mapping[RunId, str]:
        if dry_run:
            return {run_id: error.code for run_id, error in self._children.check_all(run_ids, wish).items()}
        answers = self._children.make_all(run_ids, wish)
        active = {run_id: made.outcome.value for run_id, (_, made) in answers.made.items() if made.outcome is not TriggerOutcome.CREATED}
        return {**active, **{run_id: error.code for run_id, error in answers.refused.items()}}

    def _cancelled(self, run_ids: Sequence[RunId], actor: str | None, reason: str | None) -> Mapping[RunId, str]:
        statuses, wakeups = self._operations.cancel_runs(run_ids, actor=actor, reason=reason)
        self._publisher.publish(wakeups)
        stopped = (Status.CANCELLED, Status.CANCELLATION_REQUESTED)
        return {run_id: "already_ended" for run_id in run_ids if statuses.get(run_id) not in stopped}


def _extent(limit: int | None, cursor: str | None, on_progress: Progress | None) -> Extent:
    require_extent(limit)
    return Extent(limit, cursor, on_progress)


def _nothing(run_ids: Sequence[RunId]) -> Mapping[RunId, str]:
    return {}
