"""Ended runs whose time is over, deleted in bounded batches."""

from __future__ import annotations

from runlane.domain.ids import RunId
from runlane.ports.operations import OperationStore, PruneFilter
from runlane.services.operate.bulk import BulkReport, Progress

BATCH = 500


def prune(store: OperationStore, chosen: PruneFilter, *, limit: int | None, dry_run: bool, on_progress: Progress | None) -> BulkReport:
    """Oldest first. What is done stays done: after an interruption, prune again."""
    report, after = BulkReport(), None
    while size := min(BATCH, BATCH if limit is None else limit - report.done):
        step = store.prune_runs(chosen, after=after, limit=size, dry_run=dry_run)
        report = BulkReport(report.matched + step.matched, report.done + step.pruned)
        after = RunId(step.last) if step.last is not None else None
        if on_progress is not None:
            on_progress(report)
        if step.matched < size:
            break
    return report
