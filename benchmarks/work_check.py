"""Counting the work afterwards, from the histories."""

from __future__ import annotations

import psycopg

from benchmarks.figure import require
from benchmarks.peers.rivals import Peer

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


def require_peer_each_once(dsn: str, peer: Peer, handled: list[int], count: int) -> None:
    """The peer's handlers saw every job once, and its own tables say that all are done."""
    require(sorted(handled) == list(range(count)), f"{peer.name} handled {len(handled)} jobs, {len(set(handled))} different, of {count}")
    require(_tally(dsn, peer) == (count if peer.keeps_ends else 0, 0), f"{peer.name} says (done, left) {_tally(dsn, peer)} of {count}")


def require_peer_recorded(dsn: str, peer: Peer, count: int) -> None:
    """All jobs are there, and wait."""
    require(_tally(dsn, peer) == (0, count), f"{peer.name} says (done, left) {_tally(dsn, peer)} of {count} that wait")


def _tally(dsn: str, peer: Peer) -> tuple[int, int]:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(peer.tally.encode()).fetchone()
    return (int(row[0]), int(row[1])) if row else (-1, -1)
