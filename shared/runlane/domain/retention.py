"""How long runs that have ended are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from runlane.domain.durations import Duration, format_duration, parse_duration
from runlane.domain.errors import ContractError

DEFAULT_RETENTION = "90d"
FOREVER = "forever"
SHORTEST = timedelta(days=1)


def read_retention(value: Duration) -> timedelta | None:
    """A duration of at least a day, or None for "forever"."""
    if value == FOREVER:
        return None
    found = parse_duration(value, "retention")
    if found < SHORTEST:
        raise ContractError(
            "option_invalid",
            f"retention: {format_duration(found)} is shorter than {format_duration(SHORTEST)}; give more, or {FOREVER!r}",
            meta={"field": "retention"},
        )
    return found


def retention_faults(keep_for: timedelta | None, ttls: Iterable[tuple[str, timedelta | None]]) -> Iterator[str]:
    """The tasks (id, `idempotency_ttl`) whose keys would outlive their runs."""
    for task_id, ttl in ttls:
        if keep_for is not None and ttl is not None and ttl > keep_for:
            yield (
                f"retention: {format_duration(keep_for)} is shorter than idempotency_ttl {format_duration(ttl)} of task {task_id!r}, "
                "whose keys need their runs; keep runs longer, or shorten the TTL"
            )
