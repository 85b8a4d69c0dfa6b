"""Runs made old: their ids, and with them the week in which they are kept."""

from __future__ import annotations

from datetime import timedelta

from runlane.domain.ids import RunId
from tests.postgres.factories import Lane

KEPT_FOR = timedelta(days=90)
OLD = timedelta(days=120)
_TABLES = (
    "run", "outcome", "event", "inbox", "successor", "timer", "waiting", "dispatch", "lease", "idempotency_key", "singleton_key", "retried",
    "deadline",
)  # fmt: skip

_WEEKLY = """
SELECT relname FROM pg_class WHERE relnamespace = 'runlane'::regnamespace AND relname ~ '^(run|outcome|event)_[0-9]{8}$' ORDER BY 1
"""


def make_week(lane: Lane, age: timedelta = OLD) -> str:
    """The week so long ago; its name as partitions bear it."""
    lane.connection.execute("SELECT runlane.ensure_partitions_v1(now() - %s, 0)", (age,))
    return str(lane.value("SELECT to_char(date_trunc('week', (now() - %s) AT TIME ZONE 'UTC'), 'YYYYMMDD')", age))


def age_run(lane: Lane, run_id: RunId, age: timedelta = OLD, *, ended: bool = True) -> RunId:
    """The same run under an id of so long ago, in its week's partitions; ended: its end is as old."""
    with lane.connection.transaction():
        old = lane.value("SELECT runlane.new_run_id_v1(now() - %s, 0)::text", age)
        for table in _TABLES:
            lane.connection.execute(f"UPDATE runlane.{table} SET run_id = %s WHERE run_id = %s".encode(), (old, run_id))
        if ended:
            lane.connection.execute("UPDATE runlane.outcome SET ended_at = ended_at - %s WHERE run_id = %s", (age, old))
    return RunId(old)


def weeks(lane: Lane) -> dict[str, list[str]]:
    """The weeks for which there are tables, attached or not, and of which parents."""
    found: dict[str, list[str]] = {}
    for (name,) in lane.connection.execute(_WEEKLY):
        parent, _, week = name.partition("_")
        found.setdefault(week, []).append(parent)
    return found


def retain_all(lane: Lane, *, limit: int = 500) -> int:
    """Steps of retention until there is nothing more to do now; what they counted."""
    total = 0
    while (step := lane.storage.maintenance.retain(keep_for=KEPT_FOR, limit=limit)).more:
        total += step.count
    return total
