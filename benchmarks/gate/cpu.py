"""CPU of a run as a multiple of a job's by a raw `SKIP LOCKED` queue, both by this process and its server process, in turn.

A machine that does something else makes both dearer, and mostly alike; the median of the rounds drops what hits one of them. The raw queue
claims and deletes a batch and keeps a row of history a job, in one statement: of those tried (with and without history, by tens and by
hundreds) the one that other work on the machine makes dearer by what it makes ours dearer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from statistics import geometric_mean, median

import psycopg

from benchmarks.cluster import BenchCluster
from benchmarks.gate.counts import Figures
from benchmarks.gate.work import STEPS, Side
from benchmarks.peers.lines import payload
from benchmarks.peers.raw_peer import ADD, TABLE

OURS, RAW = "bench_cpu", "bench_ruler"
HISTORY = "CREATE TABLE done (id bigint PRIMARY KEY, at timestamptz NOT NULL, payload text NOT NULL)"
TAKE = """
WITH taken AS (
    DELETE FROM raw_job WHERE id = ANY (ARRAY(SELECT id FROM raw_job ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING id, payload
), kept AS (INSERT INTO done SELECT id, clock_timestamp(), payload FROM taken)
SELECT payload FROM taken"""
JOBS, BATCH = 1_000, 10
ROUNDS = 5
MEAN = "all steps: mean CPU of raw jobs"
"""Noise reaches it half as much as a single step."""


class Ruler:
    """JOBS jobs by tens, one statement and one commit each."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.execute(TABLE)
        connection.execute(HISTORY)

    def fill(self) -> None:
        self._connection.execute(ADD, ([json.dumps(payload(number)) for number in range(JOBS)],))

    def drain(self) -> None:
        while rows := self._connection.execute(TAKE, (BATCH,)).fetchall():
            for (text,) in rows:
                json.loads(text)


def measured(cluster: BenchCluster, rounds: int = ROUNDS) -> Figures:
    """The first round is for connections and plans, and not counted."""
    ratios: dict[str, list[float]] = {step.name: [] for step in STEPS}
    with (
        cluster.database(OURS) as dsn,
        cluster.database(RAW, template="template1") as other,
        Side(dsn) as side,
        psycopg.connect(other, autocommit=True) as connection,
    ):
        ruler = Ruler(connection)
        for number in range(-1, rounds):
            for step in STEPS:
                ruler.fill()
                unit = _used(cluster, RAW, ruler.drain) / JOBS
                spent = _used(cluster, OURS, partial(step.do, side)) / step.runs
                if number >= 0:
                    ratios[step.name].append(spent / unit)
    medians = {name: median(found) for name, found in ratios.items()}
    return {f"{name}: CPU of raw jobs": value for name, value in medians.items()} | {MEAN: geometric_mean(medians.values())}


def _used(cluster: BenchCluster, database: str, do: Callable[[], None]) -> float:
    """Seconds of CPU of this process and of the processes that serve it."""
    server, own = cluster.cpu(database).backends, time.process_time()
    do()
    return time.process_time() - own + cluster.cpu(database).backends - server
