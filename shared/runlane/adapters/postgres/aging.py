"""Rows made old, for tests: time seems to have passed, and no clock is faked."""

from __future__ import annotations

from collections.abc import Collection

from runlane.adapters.postgres.connection import Session
from runlane.domain.ids import RunId


class PostgresAging:
    """Nothing of the product calls this: a run in production never starts before its time."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def make_due(self, run_ids: Collection[RunId]) -> tuple[RunId, ...]:
        """Let those of these runs that wait for their time be due now; the runs that did."""
        return tuple(run_id for (run_id,) in self._session.run("age_timers", {"ids": list(run_ids)}))

    def make_earliest_due(self) -> tuple[RunId, ...]:
        """Let the runs with the earliest due time in the future be due now, as if nothing else happened until then."""
        return tuple(run_id for (run_id,) in self._session.run("age_earliest_timers", {}))

    def close(self) -> None:
        self._session.close()
