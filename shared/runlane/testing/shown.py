"""Runs as an assertion's message shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from runlane.domain.records import RunRecord
from runlane.testing.difference import shown

MOST_RUNS = 10
MOST_LINES = 6


def shown_runs(runs: Sequence[tuple[RunRecord, Iterable[str]]]) -> Iterator[str]:
    """Each run on a line with its payload, followed by what is to be said of it."""
    for run, remarks in runs[:MOST_RUNS]:
        yield f"  {_headline(run)}"
        told = list(remarks)
        yield from (f"    {remark}" for remark in islice(told, MOST_LINES))
        if len(told) > MOST_LINES:
            yield f"    and {len(told) - MOST_LINES} more differences"
    if len(runs) > MOST_RUNS:
        yield f"  and {len(runs) - MOST_RUNS} more"


def _headline(run: RunRecord) -> str:
    keys = ("tenant", "concurrency_key", "idempotency_key", "singleton_key")
    told = [f"{name}={getattr(run, name)}" for name in keys if getattr(run, name) is not None]
    return " ".join([f"{run.task} on {run.queue}", *told, f"{run.status}", shown(run.payload)])
