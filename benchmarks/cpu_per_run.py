"""CPU per no-op run from claim to settled, beside each Python peer at the same batch size, and beside the least that a queue can do.

Ours: `Runlane.deliver_sqs` in process, with SQS-shaped events of ten or a hundred records, the storage, telemetry and metrics of the
worker function, a payload validated by pydantic, the whole history and fenced leases. All runs are dispatched when they are triggered,
as the window is larger than their number; so no wakeup is published during the measurement, and the transport only hands events over.
Continuation within a delivery is off, so that a batch is what its event says, but for the line that says otherwise: there one delivery
takes the runs of all others, and their wakeups are refused.

The peers, two worker processes each, as are ours: pgqueuer with `batch_size`, asyncpg and uvloop, in drain mode; Oban with the batch as
its queue's limit; chancy with it as `concurrency`, AsyncExecutor, eager polling; procrastinate with it as `concurrency`, until the queue
is empty; DBOS has no batches and runs with a queue without limits, its default. Jobs of milliseconds are fewer. *Raw* is the ceiling and
no queue: one table, claimed and deleted by one `SKIP LOCKED` statement a batch; a job whose worker dies is lost.

CPU is the workers' process time and the time of the server processes of their connections; that of the server's other processes (WAL
writer, checkpointer, autovacuum) stands apart. Start-up is in it for all: first plans here, the checks of their tables there. The cheapest
peer is the one with the least median of CPU in this run.

The limited and the throttled lines are by one worker process, events of ten, beside the same without a limit; wakeups of what waits for
a slot are published as slots free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks import ours
from benchmarks.catalog import LIMIT_1, LIMIT_10, MAIN, THROTTLED
from benchmarks.cluster import BenchCluster
from benchmarks.cost import Cost, rate, samples, total
from benchmarks.figure import Row, Table
from benchmarks.peers import drive
from benchmarks.peers.rivals import RAW, Peer

BARS = {10: 0.9, 100: 1.0}
LIMITED = (
    ("one partition of limit 10", LIMIT_10, 1, 1.5),
    ("1,000 partitions of limit 1", LIMIT_1, 1_000, 1.4),
    ("a throttle of a million a second", THROTTLED, 0, 1.2),
)
Costs = list[Cost]


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    rounds, share = (1, 10) if quick else (5, 1)
    peers, rows = drive.present_peers()
    for batch in BARS:
        rows += _beside_peers(cluster, batch, peers, rounds, share)
    rows += _limited(cluster, rounds, share)
    rows += _inline(cluster, rounds, share)
    return Table("CPU per no-op run, claim to settled", f"{__doc__}\nThe peers: {drive.named(peers)}.", rows)


def _beside_peers(cluster: BenchCluster, batch: int, peers: list[Peer], rounds: int, share: int) -> list[Row]:
    us: Costs = []
    them: dict[Peer, Costs] = {peer: [] for peer in (*peers, RAW)}
    for _ in range(rounds):
        us.append(ours.drained(cluster, batch, 10_000 // share))
        for peer, costs in them.items():
            costs.append(drive.drained(cluster, peer, batch, peer.count // share))
    return [*_against_cheapest(batch, us, them), *_against_each(batch, us, them)]


def _against_cheapest(batch: int, us: Costs, them: Mapping[Peer, Costs]) -> list[Row]:
    cheapest = min((peer for peer in them if peer is not RAW), key=lambda peer: samples(them[peer], total, "").median)
    beside = f"batches of {batch} / {cheapest.name}, the cheapest peer"

    def row(what: str, value: Callable[[Cost], float], unit: str, bar: float | None = None) -> Row:
        return Row(f"{what}, {beside}", samples(us, value, unit), samples(them[cheapest], value, unit), at_most=bar)

    return [
        row("CPU, worker and server process", total, "ms", BARS[batch]),
        row("of it the worker's", lambda cost: cost.worker, "ms"),
        row("of it the server processes'", lambda cost: cost.backends, "ms"),
        row("CPU of the server's other processes", lambda cost: cost.others, "ms"),
        Row(f"round trips per batch of {batch}", samples(us, lambda cost: cost.trips, ""), at_most=3),
    ]


def _against_each(batch: int, us: Costs, them: Mapping[Peer, Costs]) -> list[Row]:
    lines = [("CPU", total, "ms"), ("throughput", rate, "runs/s")]
    return [
        Row(f"{what}, batches of {batch} / {_name(peer)}", samples(us, value, unit), samples(costs, value, unit))
        for what, value, unit in lines
        for peer, costs in them.items()
    ]


def _name(peer: Peer) -> str:
    return "raw, the ceiling" if peer is RAW else peer.name


def _limited(cluster: BenchCluster, rounds: int, share: int) -> list[Row]:
    count = 5_000 // share
    free: Costs = []
    bound: dict[str, Costs] = {what: [] for what, *_ in LIMITED}
    for _ in range(rounds):
        free.append(ours.drained(cluster, 10, count, workers=1, queue=MAIN))
        for what, queue, keys, _bar in LIMITED:
            bound[what].append(ours.drained(cluster, 10, count, workers=1, queue=queue, keys=keys))
    rows: list[Row] = []
    for what, _queue, _keys, bar in LIMITED:
        costs = bound[what]
        rows.append(Row(f"CPU, {what} / unlimited", samples(costs, total, "ms"), samples(free, total, "ms"), at_most=bar))
        rows.append(Row(f"throughput, {what} / unlimited", samples(costs, rate, "runs/s"), samples(free, rate, "runs/s")))
        rows.append(Row(f"round trips per batch of 10, {what}", samples(costs, lambda cost: cost.trips, ""), at_most=3))
    return rows


def _inline(cluster: BenchCluster, rounds: int, share: int) -> list[Row]:
    costs = [ours.drained(cluster, 10, 10_000 // share, inline="30s") for _ in range(rounds)]
    return [
        Row("CPU with inline continuation (the default), events of 10", samples(costs, total, "ms")),
        Row("throughput with it", samples(costs, rate, "runs/s")),
    ]
