"""Whether history and counters agree with each other and with the limits, read from what was committed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from runlane.adapters.postgres.connection import Session

INVARIANTS = {
    "audit_places": "every run stands in exactly one place: none is lost, none is doubled",
    "audit_histories": "every history is numbered without gaps, up to where its run stands",
    "audit_ends": "every end is the last event of its run, and only ended runs have one",
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
}
"""Statement and what it must find true, in the order of a report."""


@dataclass(frozen=True, slots=True)
class Violation:
    subject: str
    fault: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One invariant, and the first violations of it; none: it holds."""

    invariant: str
    violations: tuple[Violation, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.violations


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

    def check(self, limit: int = 5) -> tuple[Finding, ...]:
        """Every invariant with at most `limit` violations."""
        return tuple(Finding(text, self._violations(name, limit)) for name, text in INVARIANTS.items())

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

    def _violations(self, name: str, limit: int) -> tuple[Violation, ...]:
        return tuple(Violation(*row) for row in self._session.run(name, {"limit": limit}))
