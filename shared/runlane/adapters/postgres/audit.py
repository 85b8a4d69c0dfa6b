"""Whether history and counters agree with each other and with the limits, read from what was committed."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from runlane.adapters.postgres.connection import Run, Session
from runlane.domain.history import FOLLOWERS
from runlane.domain.verification import EVERYTHING, Invariant, Scope, Violation

INVARIANTS = {
    "audit_places": "every run stands in exactly one place: none is lost, none is doubled",
    "audit_histories": "every history is numbered without gaps, up to where its run stands",
    "audit_transitions": "every transition is one of the table",
    "audit_ends": "every run ended as its history says, and only then",
    "audit_late_events": "nothing but refused results comes after the end of a run",
    "audit_results": "every result is of the attempt that held the lease",
    "audit_owners": "no run had two owners at a time",
    "audit_singletons": "of every singleton key one run is active, and successors wait for it",
    "audit_attempts": "no run failed more often than max_attempts",
    "audit_partition_limits": "no partition held more slots than its concurrency_limit",
    "audit_queue_limits": "no queue held more slots than its total_limit",
    "audit_throttles": "no partition saw more starts in a period than its throttle permits",
    "audit_partition_slots": "slots of every partition are numbered without gaps, one by one",
    "audit_queue_slots": "slots of every queue are numbered without gaps, one by one",
    "audit_partition_counts": "the counts of every partition equal what they count",
    "audit_queue_counts": "the counters of every queue equal what they count",
    "audit_reservations": "every reservation under a throttle has its time",
    "audit_partitions": "every slot and every waiting run is in the partition of its keys",
    "audit_wakes": "every waiting run will be woken",
    "audit_capacity": "no partition waits beside free capacity",
    "audit_keys": "every key is owned by a run that is there",
}
"""Statement and what it must find true, in the order of a report."""

OF_ONE_RUN = (
    *("audit_places", "audit_histories", "audit_transitions", "audit_ends", "audit_late_events", "audit_results", "audit_owners"),
    *("audit_singletons", "audit_attempts", "audit_reservations", "audit_partitions", "audit_keys"),
)
"""Those that can be told of a run by itself."""

_BEFORE, _AFTER = ([event.value for event in events] for events in zip(*sorted(FOLLOWERS), strict=True))


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The runs of a queue: all that were recorded, how they ended, how many are under a lease."""

    queue: str
    recorded: int
    succeeded: int
    failed: int
    cancelled: int
    running: int

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.cancelled


@dataclass(frozen=True, slots=True)
class HistoryCounts:
    """retried, recovered: runs; released: times; highest: slots held at once, by a partition and, under a `total_limit`, by the queue."""

    queue: str
    retried: int
    recovered: int
    released: int
    highest_in_partition: int | None
    highest_in_queue: int | None
    concurrency_limit: int | None
    total_limit: int | None


@dataclass(frozen=True, slots=True)
class Waits:
    """From due to the first attempt, for the runs of the keys asked for (`is_named`) or of all others."""

    queue: str
    is_named: bool
    runs: int
    p50: timedelta
    p99: timedelta


@dataclass(frozen=True, slots=True)
class Holder:
    worker: str
    run_id: str
    held_for: timedelta


class PostgresAudit:
    """Reads whole tables: for verification and small environments, not for a request's path. Every read is one snapshot."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def check(self, scope: Scope = EVERYTHING, *, limit: int = 5) -> tuple[Invariant, ...]:
        """Every invariant that the scope allows to look at, with at most `limit` violations; all of one snapshot."""
        low, high = _run_ids(scope)
        asked = {
            "low": low,
            "high": high,
            "queue": scope.queue,
            "since": scope.since,
            "before": _BEFORE,
            "after": _AFTER,
            "limit": limit + 1,
        }
        names = INVARIANTS if scope.run_id is None else OF_ONE_RUN
        with self._session.snapshot() as run:
            return tuple(_examined(name, run, asked, limit) for name in names)

    def run_counts(self) -> tuple[RunCounts, ...]:
        return tuple(RunCounts(*row) for row in self._session.run("count_runs", {}))

    def history_counts(self) -> tuple[HistoryCounts, ...]:
        return tuple(HistoryCounts(*row) for row in self._session.run("count_history", {}))

    def waits(self, keys: Collection[str]) -> tuple[Waits, ...]:
        """Percentiles per queue, for the runs with one of these concurrency keys and for the rest."""
        return tuple(Waits(*row) for row in self._session.run("measure_waits", {"keys": list(keys)}))

    def holders(self) -> tuple[Holder, ...]:
        """Leases by who holds them, longest held first."""
        return tuple(Holder(*row) for row in self._session.run("list_holders", {}))

    def close(self) -> None:
        self._session.close()


def _examined(name: str, run: Run, asked: Mapping[str, Any], limit: int) -> Invariant:
    since = time.monotonic()
    rows = run(name, asked)
    found = tuple(Violation(*row) for row in rows[:limit])
    return Invariant(name.removeprefix("audit_"), INVARIANTS[name], found, len(rows) > limit, time.monotonic() - since)


def _run_ids(scope: Scope) -> tuple[str, str]:
    """The least and the greatest id to look at: a UUIDv7 begins with the milliseconds at which it was made."""
    if scope.run_id is not None:
        return scope.run_id, scope.run_id
    milliseconds = 0 if scope.since is None else max(0, int(scope.since.timestamp() * 1000))
    return str(UUID(int=milliseconds << 80)), str(UUID(int=(1 << 128) - 1))
