"""An hour of load at half of what this machine can do: do the hot tables and the waits stay as they are after the first ten minutes?

No-op runs, two thirds without a limit and a third on 1,000 partitions of limit 1, triggered by one thread and worked off in events of ten
by two others of the same process, with a tick a minute; capacity is what they do in the first seconds without a pause. Sixty samples are
taken: of each hot table's size with its indexes, of its dead rows, and of the longest waits from trigger to handler since the sample
before. The tables that only grow, which hold the history, are no hot tables. What is compared are the last ten minutes and the ten
after the first ten.

It is run by itself, `python -m benchmarks.hour`; with `--minutes 2` everything is shorter, and the page stays as it is.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import monotonic, sleep, time_ns

import psycopg
from rich.console import Console

from benchmarks.catalog import LIMIT_1, MAIN, Payload, waited, waits
from benchmarks.cluster import BenchCluster
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.figures import PAGE_ORDER
from benchmarks.lane import MemoryTransport, make_runlane, served
from benchmarks.machine import circumstances
from benchmarks.page import write_section
from benchmarks.report import section, terminal_table
from benchmarks.work_check import require_each_once
from runlane.adapters.local.postgres import LocalPostgres
from runlane.services.trigger import Item

HOT = ("dispatch", "lease", "waiting", "inbox", "timer", "partition", "tenant", "queue", "queue_counter")
SIZES = """
SELECT coalesce(sum(pg_total_relation_size(s.relid)), 0)::float8 / 1024, coalesce(sum(s.n_dead_tup), 0)::float8
FROM unnest(%s::text[]) WITH ORDINALITY h(name, n)
LEFT JOIN pg_stat_user_tables s ON s.relid = ('runlane.' || h.name)::regclass
    OR s.relid IN (SELECT p.relid FROM pg_partition_tree(('runlane.' || h.name)::regclass) p)
GROUP BY h.n ORDER BY h.n"""
SAMPLES = 60
KEYS = 1_000
STEP = 0.05
"""Seconds between calls of trigger_many."""
AHEAD = 2_000
"""Runs under way at most while capacity is measured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Kilobytes and dead rows by hot table, and milliseconds."""

    sizes: tuple[float, ...]
    dead: tuple[float, ...]
    p99: float


class Load:
    def __init__(self, dsn: str, transport: MemoryTransport) -> None:
        self.triggered = 0
        self.handled = 0
        self._runlane = make_runlane(dsn, transport)

    def trigger(self, count: int) -> None:
        for queue, share in ((MAIN, count - count // 3), (LIMIT_1, count // 3)):
            if share:
                self._runlane.trigger_many(waited, [self._item(queue is LIMIT_1) for _ in range(share)], queue=queue)
        self.triggered += count

    def tick(self) -> None:
        self._runlane.tick()

    def close(self) -> None:
        self._runlane.close()

    def taken_waits(self) -> list[float]:
        """Those since the last call, sorted."""
        taken = [waits.popleft() for _ in range(len(waits))]
        self.handled += len(taken)
        return sorted(taken)

    def _item(self, keyed: bool) -> Item:
        payload = Payload(number=time_ns())
        return Item(payload, concurrency_key=f"key-{payload.number // 1000 % KEYS}") if keyed else Item(payload)


def run(cluster: BenchCluster, minutes: float, say: Callable[[str], None]) -> Table:
    with _loaded(cluster) as (load, connection):
        rate = _capacity(load, max(5.0, minutes / 3)) / 2
        say(f"{rate:,.0f} runs a second")
        _finished(load)
        samples = [_sampled(load, connection, rate, minutes, number, say) for number in range(SAMPLES)]
    return Table(f"{minutes:g} minutes at half capacity", __doc__ or "", _rows(samples, rate))


@contextmanager
def _loaded(cluster: BenchCluster) -> Iterator[tuple[Load, psycopg.Connection]]:
    transport = MemoryTransport()
    with (
        cluster.database("bench_hour") as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
        closing(make_runlane(dsn, transport)) as one,
        closing(make_runlane(dsn, transport)) as two,
        closing(Load(dsn, transport)) as load,
    ):
        with served([one, two], transport):
            yield load, connection
            _finished(load)
        require_each_once(dsn, load.triggered)


def _finished(load: Load) -> None:
    given_up_at = monotonic() + 300
    while load.handled < load.triggered:
        require(monotonic() < given_up_at, f"{load.handled} runs of {load.triggered} were done")
        sleep(0.2)
        load.taken_waits()


def _capacity(load: Load, seconds: float) -> float:
    """Runs a second; the first third of the time is not counted."""
    started, counted_from, before = monotonic(), 0.0, 0
    while (now := monotonic()) < started + seconds:
        load.taken_waits()
        if not counted_from and now > started + seconds / 3:
            counted_from, before = now, load.handled
        if load.triggered - load.handled < AHEAD:
            load.trigger(300)
        else:
            sleep(0.01)
    return (load.handled - before) / (monotonic() - counted_from)


def _sampled(load: Load, connection: psycopg.Connection, rate: float, minutes: float, number: int, say: Callable[[str], None]) -> Sample:
    length = minutes * 60 / SAMPLES
    if number % max(1, round(60 / length)) == 0:
        load.tick()
    started, sent = monotonic(), 0
    while (now := monotonic()) < started + length or not waits:
        if due := int((now - started) * rate) - sent:
            load.trigger(due)
            sent += due
        sleep(STEP)
    found = load.taken_waits()
    sizes, dead = zip(*connection.execute(SIZES, (list(HOT),)).fetchall(), strict=True)
    sample = Sample(sizes, dead, found[min(len(found) - 1, len(found) * 99 // 100)] * 1000)
    say(f"{number + 1}/{SAMPLES}: {sum(sizes):,.0f} kB, {sum(dead):,.0f} dead rows, p99 {sample.p99:,.1f} ms, {len(found):,} runs")
    return sample


def _rows(samples: list[Sample], rate: float) -> list[Row]:
    def row(what: str, value: Callable[[Sample], float], unit: str, bar: float | None = None) -> Row:
        first, last = (Samples(tuple(value(sample) for sample in part), unit) for part in (samples[10:20], samples[-10:]))
        return Row(f"{what}, last ten minutes / minutes 10 to 20", last, first, at_most=bar)

    return [
        row("size of the hot tables", lambda sample: sum(sample.sizes), "kB", 1.1),
        row("p99 from trigger to handler", lambda sample: sample.p99, "ms", 1.1),
        row("dead rows", lambda sample: sum(sample.dead), ""),
        *(row(f"size of {table}", lambda sample, place=place: sample.sizes[place], "kB") for place, table in enumerate(HOT)),
        Row("load", Samples((rate,), "runs/s")),
    ]


def main() -> int:
    parser = ArgumentParser(prog="python -m benchmarks.hour")
    parser.add_argument("--minutes", type=float, default=60.0, help="in all; docs/benchmarks.md is written from 60 on")
    minutes: float = parser.parse_args().minutes
    console = Console(width=200)
    with LocalPostgres() as server:
        where = circumstances(server.dsn)
        table = run(BenchCluster(server), minutes, lambda line: console.print(line, highlight=False))
    console.print(terminal_table(table))
    if minutes >= 60:
        write_section("hour", section(table, where), PAGE_ORDER)
    return 0 if all(row.passed for row in table.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
