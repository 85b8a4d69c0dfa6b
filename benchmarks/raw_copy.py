"""What a trigger of many runs writes, read back and written again by one statement: the least that the same rows can cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from benchmarks.figure import require

WRITTEN = {"run": "run_id", "event": "run_id, seq", "dispatch": "run_id"}
"""The tables that a trigger writes when everything is dispatched at once, and their keys."""
COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""


@dataclass(frozen=True, slots=True)
class RawCopy:
    """A statement that inserts into every table of WRITTEN, and the rows as one array literal a column, so that the client has no work."""

    statement: str
    literals: tuple[str, ...]
    rows: int

    def write(self, connection: psycopg.Connection) -> None:
        connection.execute(self.statement.encode(), self.literals)


def copied(connection: psycopg.Connection, run_ids: Sequence[str]) -> RawCopy:
    """The rows of these runs."""
    inserts: list[str] = []
    literals: list[str] = []
    rows = 0
    for table, key in WRITTEN.items():
        columns = connection.execute(COLUMNS, (f"runlane.{table}",)).fetchall()
        names = ", ".join(name for name, _ in columns)
        arrays = ", ".join(f"array_agg({name} ORDER BY {key})::text" for name, _ in columns)
        read = f"SELECT count(*), {arrays} FROM runlane.{table} WHERE run_id = ANY (%s::uuid[])"
        count, *found = connection.execute(read.encode(), (list(run_ids),)).fetchone() or (0,)
        require(count >= len(run_ids), f"{table} has {count} rows of {len(run_ids)} runs")
        given = ", ".join(f"%s::{kind}[]" for _, kind in columns)
        inserts.append(f"INSERT INTO runlane.{table} ({names}) OVERRIDING SYSTEM VALUE SELECT * FROM unnest({given})")
        literals += found
        rows += count
    *first, last = inserts
    parts = ", ".join(f"part_{number} AS ({insert})" for number, insert in enumerate(first))
    return RawCopy(f"WITH {parts} {last}", tuple(literals), rows)
