"""Who is measured beside us."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from benchmarks.peers.environment import peer_python, peer_version


@dataclass(frozen=True, slots=True)
class Peer:
    """count: jobs of one measurement, fewer where a job takes milliseconds. tally: SQL for (jobs done, jobs left)."""

    name: str
    count: int
    tally: str
    least: str = "3.11"
    """The oldest Python it runs on."""
    keeps_ends: bool = True

    @property
    def python(self) -> str:
        """Raises NoPython."""
        return sys.executable if self is RAW else peer_python(self.name, self.least)

    @property
    def version(self) -> str:
        return peer_version(self.name, self.least)

    def command(self, verb: str, dsn: str, *arguments: int) -> list[str]:
        return [self.python, "-m", f"benchmarks.peers.{self.name}_peer", verb, dsn, *map(str, arguments)]


def _by_state(column: str, table: str, done: str) -> str:
    return f"SELECT count(*) FILTER (WHERE {column} = '{done}'), count(*) FILTER (WHERE {column} <> '{done}') FROM {table}"


PEERS = (
    Peer(
        "pgqueuer",
        10_000,
        "SELECT (SELECT count(DISTINCT job_id) FROM pgqueuer_log WHERE status = 'successful'), (SELECT count(*) FROM pgqueuer)",
    ),
    Peer("oban", 4_000, _by_state("state", "oban_jobs", "completed"), "3.12"),
    Peer("chancy", 4_000, _by_state("state", "chancy_jobs", "succeeded")),
    Peer("procrastinate", 2_000, _by_state("status", "procrastinate_jobs", "succeeded")),
    Peer("dbos", 2_000, _by_state("status", "dbos.workflow_status", "SUCCESS")),
)
RAW = Peer("raw", 20_000, "SELECT 0, count(*) FROM raw_job", keeps_ends=False)
