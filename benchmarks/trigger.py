"""`trigger` one by one beside each peer's own call, and `trigger_many` beside one `INSERT … unnest` of the same rows.

One by one: a process that triggers no-op runs, each committed before the next; ours validates the payload, records the run with its
history, dispatches it, hands its wakeup to a transport that keeps it in memory and marks what was published, together. CPU is that
process' and its server process'. *Raw* is an `INSERT` into a table of one index.

Many: calls of 1,000 and of 10,000 no-op runs, dispatched and published as above, in wall time. Beside them one statement that writes the
very rows that such a call has left, read back from its database, into the same tables with the same indexes of another one; the rows come
as one array literal a column, so that the client has nothing to do.

Transaction ids and round trips are those of 1,000 runs triggered by one call and worked off in batches of ten, by one process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from time import perf_counter

import psycopg

from benchmarks.catalog import Payload, noop
from benchmarks.cluster import BenchCluster, settle_down
from benchmarks.cost import Cost, measured, rate, samples, total
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.lane import MemoryTransport, counted_trips, make_runlane, sqs_events
from benchmarks.ours import DATABASE
from benchmarks.peers import drive
from benchmarks.peers.rivals import RAW, Peer
from benchmarks.processes import WorkerProcess
from benchmarks.raw_copy import RawCopy, copied
from benchmarks.work_check import require_each_once
from runlane.runtime import Runlane

NEXT_ID = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
RUNS, BATCH = 1_000, 10


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    rounds, count = (1, 200) if quick else (5, 2_000)
    peers, rows = drive.present_peers()
    rows += _one_by_one(cluster, peers, rounds, count)
    for size in (1_000, 10_000):
        rows.append(_many(cluster, size, 2 if quick else 5))
    rows += _ids_and_trips(cluster, rounds)
    return Table("Trigger", f"{__doc__}\nThe peers: {drive.named(peers)}.", rows)


def _one_by_one(cluster: BenchCluster, peers: list[Peer], rounds: int, count: int) -> list[Row]:
    us: list[Cost] = []
    them: dict[Peer, list[Cost]] = {peer: [] for peer in (*peers, RAW)}
    for _ in range(rounds):
        us.append(_triggered(cluster, count))
        for peer, costs in them.items():
            costs.append(drive.triggered(cluster, peer, count))
    return _rows(us, them)


def _rows(us: list[Cost], them: Mapping[Peer, list[Cost]]) -> list[Row]:
    cheapest = min((peer for peer in them if peer is not RAW), key=lambda peer: samples(them[peer], total, "").median)
    names = {peer: "raw" if peer is RAW else peer.name for peer in them}
    bar = f"CPU of trigger, client and server process / {cheapest.name}, the cheapest peer"
    return [
        Row(bar, samples(us, total, "ms"), samples(them[cheapest], total, "ms"), at_most=1.0),
        Row("of it the client's", samples(us, lambda cost: cost.worker, "ms"), samples(them[cheapest], lambda cost: cost.worker, "ms")),
        *(Row(f"CPU of trigger / {names[peer]}", samples(us, total, "ms"), samples(costs, total, "ms")) for peer, costs in them.items()),
        *(
            Row(f"rate of trigger / {names[peer]}", samples(us, rate, "runs/s"), samples(costs, rate, "runs/s"))
            for peer, costs in them.items()
        ),
    ]


def _triggered(cluster: BenchCluster, count: int) -> Cost:
    with cluster.database(DATABASE) as dsn:
        settle_down(dsn)
        process = WorkerProcess([sys.executable, "-m", "benchmarks.trigger_client", dsn, str(count)])
        cost, _ = measured(cluster, DATABASE, count, [process])
        _require_recorded(dsn, count)
        return cost


def _many(cluster: BenchCluster, size: int, rounds: int) -> Row:
    """Each call in turn with its copy."""
    ours: list[float] = []
    raw: list[float] = []
    with cluster.database(DATABASE) as dsn, cluster.database("bench_copy") as other:
        with closing(make_runlane(dsn, MemoryTransport())) as runlane, psycopg.connect(dsn) as reader, psycopg.connect(other) as writer:
            _write(_call(runlane, reader, 10)[0], writer)  # Connections and plans.
            for _ in range(rounds):
                copy, seconds = _call(runlane, reader, size)
                ours.append(size / seconds)
                raw.append(size / _write(copy, writer))
        for database in (dsn, other):
            _require_recorded(database, 10 + rounds * size)
    what = f"rate of trigger_many, calls of {size:,} / one INSERT … unnest of the same rows"
    return Row(what, Samples(tuple(ours), "runs/s"), Samples(tuple(raw), "runs/s"), at_least=0.5)


def _call(runlane: Runlane, reader: psycopg.Connection, size: int) -> tuple[RawCopy, float]:
    payloads = [Payload(number=number) for number in range(size)]
    started = perf_counter()
    results = runlane.trigger_many(noop, payloads)
    seconds = perf_counter() - started
    copy = copied(reader, [result.run.run_id for result in results])
    reader.commit()
    return copy, seconds


def _write(copy: RawCopy, writer: psycopg.Connection) -> float:
    started = perf_counter()
    copy.write(writer)
    writer.commit()
    return perf_counter() - started


def _ids_and_trips(cluster: BenchCluster, rounds: int) -> list[Row]:
    found = [_worked_off(cluster) for _ in range(rounds)]
    ids, trips = zip(*found, strict=True)
    return [
        Row("transaction ids, 1,000 runs by trigger_many, batches of ten", Samples(ids, ""), at_most=350),
        Row("round trips a batch, the trigger's shared out", Samples(trips, ""), at_most=3),
    ]


def _worked_off(cluster: BenchCluster) -> tuple[float, float]:
    """Transaction ids of all, round trips per batch."""
    transport = MemoryTransport()
    options = {"continue_inline_for": "0s"}
    with (
        cluster.database(DATABASE) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
        closing(make_runlane(dsn, transport, **options)) as runlane,
    ):
        before = _next_id(connection)
        with counted_trips() as trips:
            runlane.trigger_many(noop, [Payload(number=number) for number in range(RUNS)])
            for event in sqs_events(list(transport.bodies), BATCH):
                require(not runlane.deliver_sqs(event)["batchItemFailures"], "a message failed")
        ids = _next_id(connection) - before
        require_each_once(dsn, RUNS)
        return ids, sum(trips.values()) / (RUNS / BATCH)


def _next_id(connection: psycopg.Connection) -> int:
    row = connection.execute(NEXT_ID).fetchone()
    return int(row[0]) if row else 0


def _require_recorded(dsn: str, count: int) -> None:
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT (SELECT count(*) FROM runlane.run), (SELECT count(*) FROM runlane.dispatch)").fetchone()
    require(found == (count, count), f"(runs, dispatched) are {found}, not {count}")
