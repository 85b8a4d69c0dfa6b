"""What a verification looks at, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Scope:
    """What to verify; None: all. `since`: runs recorded and slots taken or given since then; `run_id`: the run's own history and place."""

    since: datetime | None = None
    queue: str | None = None
    run_id: str | None = None


EVERYTHING = Scope()


@dataclass(frozen=True, slots=True)
class Violation:
    """`subject`: a run by its id, a partition or a queue."""

    subject: str
    fault: str


@dataclass(frozen=True, slots=True)
class Invariant:
    """One invariant, and the first violations of it; none: it holds. `is_cut`: there are more of them than are named."""

    name: str
    invariant: str
    violations: tuple[Violation, ...] = ()
    is_cut: bool = False
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        return not self.violations


@dataclass(frozen=True, slots=True)
class Verification:
    """Every invariant that the scope allows to look at, of one moment; `seconds`: how long it took."""

    holds: bool
    seconds: float
    invariants: tuple[Invariant, ...]
