"""Throughput after 150,000 runs have lived and died while a REPEATABLE READ snapshot is held open, beside the same without it.

Two databases of one server. In each 150,000 no-op runs are triggered, claimed and settled in tens by this process, with the storage's own
calls; a snapshot that is held in one database keeps nothing in the other. Then, in turn, lots of the same are timed in both, the snapshot
still open. The last lines say what that costs: the time of a claim and of a settle.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter

import psycopg

from benchmarks.catalog import MAIN
from benchmarks.cluster import BenchCluster
from benchmarks.figure import Row, Samples, Table
from benchmarks.work_check import require_each_once
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.ports.stores import NewRun

LOT, BATCH = 2_000, 10
LEASE = timedelta(minutes=5)


@dataclass
class Side:
    """One database, churned; seconds spent on claims and settles."""

    storage: PostgresStorage
    spent: dict[str, float] = field(default_factory=lambda: {"claim": 0.0, "settle": 0.0})

    def live_and_die(self, count: int) -> float:
        """Runs per second from trigger to end."""
        started, left = perf_counter(), count
        self.storage.triggers.trigger_runs([NewRun("noop", MAIN.name, "{}") for _ in range(count)], eager=True)
        while left:
            before = perf_counter()
            claims = self.storage.deliveries.claim_oldest([MAIN.name], limit=BATCH, lease_for=LEASE, worker="bench").claims
            between = perf_counter()
            self.storage.deliveries.settle_runs(
                [Settlement(claim.run_id, claim.token, OutcomeKind.SUCCEEDED, result="null") for claim in claims]
            )
            self.spent["claim"] += between - before
            self.spent["settle"] += perf_counter() - between
            left -= len(claims)
        return count / (perf_counter() - started)


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    churn, lot, rounds = (3_000, 500, 3) if quick else (150_000, LOT, 5)
    rates: dict[str, list[float]] = {"held": [], "free": []}
    times: dict[str, dict[str, list[float]]] = {side: {"claim": [], "settle": []} for side in rates}
    with ExitStack() as stack:
        dsns = {name: stack.enter_context(cluster.database(f"bench_churn_{name}")) for name in rates}
        sides = {name: Side(stack.enter_context(closing(PostgresStorage(dsn)))) for name, dsn in dsns.items()}
        _hold_snapshot(stack.enter_context(psycopg.connect(dsns["held"])))
        for _ in range(churn // lot):
            for side in sides.values():
                side.live_and_die(lot)
        for _ in range(rounds):
            for name, side in sides.items():
                side.spent = {"claim": 0.0, "settle": 0.0}
                rates[name].append(side.live_and_die(lot))
                for what, seconds in side.spent.items():
                    times[name][what].append(seconds * 1000 * BATCH / lot)
        for dsn in dsns.values():
            require_each_once(dsn, (churn // lot + rounds) * lot)
    held, free = (Samples(tuple(rates[name]), "runs/s") for name in ("held", "free"))
    tolerance = 0.1 if quick else 0.0
    rows = [Row(f"throughput after {churn:,} runs under a held snapshot / without it", held, free, at_least=0.6, tolerance=tolerance)]
    for what in ("claim", "settle"):
        mine, plain = (Samples(tuple(times[name][what]), "ms") for name in ("held", "free"))
        rows.append(Row(f"{what} of {BATCH}, under it / without it", mine, plain))
    return Table("Churn under a held snapshot", __doc__ or "", rows)


def _hold_snapshot(connection: psycopg.Connection) -> None:
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT 1")
