"""Which runs an operator means."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TypedDict, Unpack

from runlane.domain.errors import ContractError
from runlane.domain.queue import Queue
from runlane.domain.records import RunFilter
from runlane.domain.registry import QueueRegistry
from runlane.domain.run import Source, Status
from runlane.services.operate.arguments import TaskName, checked_key, checked_source, checked_statuses, checked_time, queue_name, task_name


class RunFilters(TypedDict, total=False):
    """All that are given hold; None means any. Times are aware; `created_after` is inclusive, `created_before` exclusive."""

    status: Status | str | Iterable[Status | str] | None
    task: TaskName | None
    queue: Queue | str | None
    tenant: str | None
    concurrency_key: str | None
    source: Source | str | None
    created_after: datetime | None
    created_before: datetime | None


def run_filter(queues: QueueRegistry, **given: Unpack[RunFilters]) -> RunFilter:
    """`ContractError` `option_unknown` or `option_invalid` names the filter that is wrong."""
    if unknown := sorted(given.keys() - RunFilters.__annotations__.keys()):
        known = ", ".join(RunFilters.__annotations__)
        raise ContractError("option_unknown", f"{unknown[0]}: there is no such filter; there are {known}", meta={"field": unknown[0]})
    task, queue = given.get("task"), given.get("queue")
    return RunFilter(
        statuses=checked_statuses(given.get("status")),
        task=None if task is None else task_name(task),
        queue=None if queue is None else queue_name(queues, queue),
        tenant=checked_key(given.get("tenant"), "tenant"),
        concurrency_key=checked_key(given.get("concurrency_key"), "concurrency_key"),
        source=checked_source(given.get("source")),
        created_after=checked_time(given.get("created_after"), "created_after"),
        created_before=checked_time(given.get("created_before"), "created_before"),
    )
