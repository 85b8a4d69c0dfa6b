"""What maintenance asks of storage. A file of its own, as no delivery needs it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, Protocol

from runlane.domain.ids import RunId
from runlane.ports.stores import ExpiredLease, Wakeup


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """One bounded step of a maintenance phase. `more`: the next one would find something to do, though this one counted nothing."""

    count: int
    more: bool
    wakeups: tuple[Wakeup, ...] = ()


class Gauges(NamedTuple):
    """`oldest_due_for`: the wait of the oldest run that could have started, or was dispatched and not claimed. `horizon_for`: since when
    the oldest transaction that this role sees holds back vacuum. Zero where there is none."""

    oldest_due_for: timedelta
    horizon_for: timedelta


class MaintenanceStore(Protocol):
    """Repair, one bounded step a call. Each is safe when run twice at once."""

    def due_timers(self, *, look_ahead: timedelta, limit: int) -> PhaseResult:
        """Make due timers ready, and return hints for those due within the look-ahead."""
        ...

    def fold_recorded(self, *, limit: int) -> PhaseResult: ...

    def expire_dispatches(self, *, limit: int) -> PhaseResult: ...

    def expired_leases(self, *, limit: int, without: Collection[RunId] = ()) -> tuple[ExpiredLease, ...]:
        """The oldest first, passing over some runs. None for ten seconds after most of all leases, more than twenty, were found expired:
        then their owners were cut off, and those that are alive extend them."""
        ...

    def expire_deadlines(self, *, limit: int) -> PhaseResult:
        """Apply start and finish time-outs that have passed."""
        ...

    def dispatch_queues(self, *, limit: int) -> PhaseResult: ...

    def claim_unpublished(self, *, limit: int) -> PhaseResult:
        """Take over wakeups that were never published, or whose publisher died, for publishing by the caller."""
        ...

    def ensure_partitions(self) -> PhaseResult:
        """Make time partitions ahead."""
        ...

    def retain(self, *, keep_for: timedelta | None, limit: int) -> PhaseResult:
        """End some of what ended longer ago: a few runs, or a table of a week. `more`: until nothing is left that need not rest."""
        ...

    def note_tick(self, failed: Sequence[str]) -> Gauges:
        """Keep that a pass was made now, and which of its phases failed."""
        ...
