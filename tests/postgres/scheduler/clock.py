"""A database whose functions read a clock that the test sets: production's text with `clock_timestamp()` exchanged, and nothing else."""

from __future__ import annotations

from datetime import datetime

import psycopg

_READERS = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'runlane'::regnamespace AND prosrc LIKE %s"


def install_clock(connection: psycopg.Connection) -> datetime:
    """Stop the clock at the present second, which is the answer; it stands in the one row of `runlane.set_clock`."""
    connection.execute("CREATE TABLE runlane.set_clock WITH (fillfactor = 20) AS SELECT date_trunc('second', now()) AS at")
    connection.execute("CREATE FUNCTION runlane.set_clock() RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT at FROM runlane.set_clock'")
    for (text,) in connection.execute(_READERS, ("%clock_timestamp()%",)).fetchall():
        connection.execute(text.replace("clock_timestamp()", "runlane.set_clock()").encode())
    row = connection.execute("SELECT at FROM runlane.set_clock").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now
