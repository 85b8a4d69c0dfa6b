"""Repair, one bounded step a call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from psycopg import sql

from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.faults import refusal
from runlane.adapters.postgres.partitions import WEEKS_AHEAD
from runlane.adapters.postgres.rows import Effect, array_literal, wakeups
from runlane.domain.errors import RunlaneError
from runlane.domain.ids import RunId
from runlane.ports.maintenance import Gauges, PhaseResult
from runlane.ports.stores import ExpiredLease

_DETACH_PATIENCE = 2.0
"""Seconds in which every transaction that has used a table may end."""
_MOVED = ("detach", "detached", "dropped")


class PostgresMaintenanceStore:
    def __init__(self, session: Session) -> None:
        self._session = session

    def due_timers(self, *, look_ahead: timedelta, limit: int) -> PhaseResult:
        effects = self._session.run("due_timers", {"look_ahead": look_ahead, "limit": limit})
        return _with_hints(effects, _phase_result(effects, limit), limit)

    def fold_recorded(self, *, limit: int) -> PhaseResult:
        # First, and in a transaction of its own: it locks singleton keys, which come before any queue.
        successors = _phase_result(self._session.run("fold_successors", {"limit": limit}), limit)
        runs = _phase_result(self._session.run("fold_recorded", {"limit": limit}), limit)
        return PhaseResult(successors.count + runs.count, successors.more or runs.more, (*successors.wakeups, *runs.wakeups))

    def expire_dispatches(self, *, limit: int) -> PhaseResult:
        return _phase_result(self._session.run("expire_dispatches", {"limit": limit}), limit)

    def expired_leases(self, *, limit: int, without: Collection[RunId] = ()) -> tuple[ExpiredLease, ...]:
        rows = self._session.run("expired_leases", {"limit": limit, "without": array_literal(without)})
        return tuple(ExpiredLease(RunId(run_id), *rest) for run_id, *rest in rows)

    def expire_deadlines(self, *, limit: int) -> PhaseResult:
        return _phase_result(self._session.run("expire_deadlines", {"limit": limit}), limit)

    def dispatch_queues(self, *, limit: int) -> PhaseResult:
        effects = self._session.run("dispatch_queues", {})
        return _with_hints(effects, _phase_result(effects, limit, counted="wakeup"), limit)

    def claim_unpublished(self, *, limit: int) -> PhaseResult:
        return _phase_result(self._session.run("claim_unpublished", {"limit": limit}), limit, counted="wakeup")

    def retain(self, *, keep_for: timedelta | None, limit: int) -> PhaseResult:
        ((action, parent, part, looked_at),) = self._session.run("retain", {"keep_for": keep_for, "limit": limit})
        if action == "detach" and not self._detach(parent, part):
            action = "busy"
        # Asked again until there is nothing: what was busy or failed rests, and others have their turn.
        return PhaseResult(looked_at if action == "swept" else int(action in _MOVED), action != "none")

    def _detach(self, parent: str, part: str) -> bool:
        """Nobody waits for it, and it waits for whoever has used the table: cut off, it is finished in a later pass."""
        statement = sql.SQL("ALTER TABLE {} DETACH PARTITION {} CONCURRENTLY")
        names = (sql.Identifier(self._session.schema, name) for name in (parent, part))
        try:
            if not self._session.run_alone(statement.format(*names), patience=_DETACH_PATIENCE):
                return False
        except RunlaneError as error:
            if (refused := refusal(error)) is None:
                raise
            sqlstate, message = refused
            self._session.run("detach_failed", {"parent": parent, "part": part, "sqlstate": sqlstate, "message": message})
            return False
        self._session.run("detached", {"part": part})
        return True

    def note_tick(self, failed: Sequence[str]) -> Gauges:
        ((_, oldest_due_for, horizon_for),) = self._session.run("note_tick", {"failed": list(failed)})
        return Gauges(oldest_due_for, horizon_for)

    def ensure_partitions(self) -> PhaseResult:
        ((made,),) = self._session.run("ensure_partitions", {"weeks": WEEKS_AHEAD})
        return PhaseResult(made, False)


def _with_hints(effects: Sequence[Effect], found: PhaseResult, limit: int) -> PhaseResult:
    hinted = sum(1 for row in effects if row[0] == "hint")
    return PhaseResult(found.count + hinted, found.more or hinted >= limit, found.wakeups)


def _phase_result(effects: Sequence[Effect], limit: int, *, counted: str = "counted") -> PhaseResult:
    count = sum(1 for row in effects if row[0] == counted)
    return PhaseResult(count, count >= limit, wakeups(effects))
