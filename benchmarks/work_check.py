"""Counting the work afterwards, from the histories."""

from __future__ import annotations

import psycopg

from benchmarks.figure import require

LEFT = "SELECT (SELECT count(*) FROM runlane.dispatch) + (SELECT count(*) FROM runlane.lease) + (SELECT count(*) FROM runlane.waiting)"
ONCE = """
SELECT count(*), count(*) FILTER (WHERE claims = 1 AND ends = 1)
FROM (SELECT run_id, count(*) FILTER (WHERE type = 'run.claimed') AS claims, count(*) FILTER (WHERE type = 'run.succeeded') AS ends
      FROM runlane.event GROUP BY run_id) x
"""


def require_each_once(dsn: str, count: int) -> None:
    """Every run was claimed once and succeeded once, by its events; nothing is under way."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(ONCE).fetchone()
        left = connection.execute(LEFT).fetchone()
    require(found == (count, count), f"of {count} runs, (seen, claimed and succeeded once) are {found}")
    require(left == (0,), f"runs under way at the end: {left}")


def require_peer_each_once(dsn: str, handled: list[int], count: int) -> None:
    """The peer's handlers saw every job once, and its own log says that all were successful."""
    with psycopg.connect(dsn) as connection:
        logged = connection.execute("SELECT count(DISTINCT job_id), count(*) FROM pgqueuer_log WHERE status = 'successful'").fetchone()
        left = connection.execute("SELECT count(*) FROM pgqueuer").fetchone()
    require(sorted(handled) == list(range(count)), f"the peer handled {len(handled)} jobs, {len(set(handled))} different, of {count}")
    require(logged == (count, count) and left == (0,), f"the peer's log says {logged} successful of {count}, {left} left")
