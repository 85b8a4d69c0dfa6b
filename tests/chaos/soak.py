"""A soak: `python -m tests.chaos.soak --minutes 10 --seed 7`, or `make soak MINUTES=10`.

A steady load of mixed runs over a transport that loses, doubles and delays, with random faults from a printed seed; then everything is
let come to its end and checked. Memory of a process that lives through it all and the size of the hot tables must stay flat.
"""

from __future__ import annotations

import argparse
import secrets
import threading
import time
from dataclasses import dataclass
from random import Random

import psutil

from tests.acceptance.failures.outage import Door
from tests.chaos.faults import Faults
from tests.chaos.load import CHUNK, Load
from tests.chaos.stage import LEASE, TICK, ChaosStage, Recoveries, chaos_stage, check, percentile, recoveries, servers, wait_for_the_end

FAULT_EVERY = 2.0
"""Seconds between faults."""
RESUMES_WITHIN = 5.0
RECOVERS_WITHIN = LEASE + TICK + 0.5
"""A lease, the time between two ticks, and as long as a tick may take until it comes to leases."""
AFTER_EXPIRY = 3.0
"""The longest; wakeups of killed workers come again by then, too."""
MORE_MEMORY = 24.0
"""MB that the process that is never killed may grow after a third of the time, whatever the length of the soak."""
MORE_TABLES = 16.0
"""MB that the hot tables may grow in that time, with their indexes: what vacuum has not reached yet."""
PATIENCE = 60.0
_HOT = """
SELECT sum(pg_total_relation_size(oid)) / 1e6 FROM pg_class WHERE relnamespace = 'runlane'::regnamespace AND relkind = 'r'
AND relname IN ('inbox', 'successor', 'timer', 'waiting', 'dispatch', 'lease', 'partition', 'queue', 'queue_counter', 'queue_counter_delta')
"""


@dataclass(frozen=True)
class Sizes:
    """MB: resident memory of the first worker and of the ticker, and the hot tables."""

    worker: float
    ticker: float
    tables: float


@dataclass(frozen=True)
class Soak:
    seed: int
    minutes: float
    triggered: int
    refused: int
    faults: dict[str, int]
    statuses: dict[str, int]
    recoveries: Recoveries
    resumed: tuple[float, ...]
    before: Sizes
    after: Sizes

    def faulty(self) -> list[str]:
        """What breaks a bound."""
        bounds = [
            ("recovery after SIGKILL, p99, s", percentile(self.recoveries.after_kill, 0.99), RECOVERS_WITHIN),
            ("recovery after the lease's end, longest, s", max(self.recoveries.after_expiry, default=0.0), AFTER_EXPIRY),
            ("work resumed after Postgres returned, longest, s", max(self.resumed, default=0.0), RESUMES_WITHIN),
            ("memory of the worker, MB more", self.after.worker - self.before.worker, MORE_MEMORY),
            ("memory of the ticker, MB more", self.after.ticker - self.before.ticker, MORE_MEMORY),
            ("hot tables, MB more", self.after.tables - self.before.tables, MORE_TABLES),
        ]
        return [f"{name}: {found:.2f}, at most {bound:g}" for name, found, bound in bounds if found > bound]

    def rows(self) -> list[tuple[str, str]]:
        after_kill, after_expiry = self.recoveries.after_kill, self.recoveries.after_expiry
        return [
            ("load held", f"{self.triggered / self.minutes / 60:.0f} runs/s for {self.minutes:g} min, {self.triggered} runs"),
            ("ended", ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items()))),
            ("lost", "0"),
            ("triggers refused while Postgres was away", str(self.refused)),
            *((f"fault: {name}", str(count)) for name, count in sorted(self.faults.items())),
            ("leases recovered of killed workers", f"{len(after_expiry)}, {len(after_kill)} without an outage of the database in between"),
            ("recovery of those after SIGKILL, p50 / p99 / longest", _percentiles(after_kill)),
            ("recovery of all after the lease's end", _percentiles(after_expiry)),
            ("work resumed after Postgres returned, longest", f"{max(self.resumed, default=0.0):.2f} s"),
            ("memory of the worker, after a third and at the end", f"{self.before.worker:.0f} MB, {self.after.worker:.0f} MB"),
            ("memory of the ticker", f"{self.before.ticker:.0f} MB, {self.after.ticker:.0f} MB"),
            ("hot tables", f"{self.before.tables:.1f} MB, {self.after.tables:.1f} MB"),
        ]


class Producer(threading.Thread):
    """Chunks at a steady rate; late ones are made up for, as callers do not go away."""

    def __init__(self, load: Load, rate: float) -> None:
        super().__init__(daemon=True)
        self._load = load
        self._pause = CHUNK / rate
        self.stopping = threading.Event()

    def run(self) -> None:
        next_at = time.monotonic()
        while not self.stopping.wait(max(0.0, next_at - time.monotonic())):
            if self._load.trigger():
                next_at += self._pause
                self._load.cancel()
            else:
                self.stopping.wait(0.1)


def soak(minutes: float, seed: int, rate: float) -> Soak:
    """Everything injected, ended and checked; `AssertionError` with the promise that is broken."""
    random = Random(seed)
    with servers() as found, Door(found.sqs.endpoint_url) as door, chaos_stage(found, seed, sqs_url=door.url) as stage:
        stage.start()
        load, faults = Load(stage.runlane, Random(seed + 1)), Faults(stage, found.postgres, door, random)
        producer, began = Producer(load, rate), time.monotonic()
        ends_at, before = began + minutes * 60, None
        producer.start()
        try:
            faults.inject_all()
            while time.monotonic() < ends_at:
                if before is None and time.monotonic() > began + minutes * 20:
                    before = sizes(stage)
                faults.inject()
                time.sleep(max(0.0, min(FAULT_EVERY, ends_at - time.monotonic())))
        finally:
            producer.stopping.set()
            producer.join(PATIENCE)
        held = (time.monotonic() - began) / 60
        wait_for_the_end(stage, len(load.triggered), timeout=PATIENCE)
        after = sizes(stage)
        return Soak(
            seed=seed,
            minutes=round(held, 1),
            triggered=len(load.triggered),
            refused=load.refused,
            faults=dict(faults.counts),
            statuses=check(stage, load.triggered, load.doomed, load.asked),
            recoveries=recoveries(stage),
            resumed=tuple(faults.resumed),
            before=before or after,
            after=after,
        )


def sizes(stage: ChaosStage) -> Sizes:
    assert stage.ticker is not None
    memory = [psutil.Process(process.pid).memory_info().rss / 1e6 for process in (stage.workers[0], stage.ticker)]
    return Sizes(*memory, tables=float(stage.value(_HOT)))


def _percentiles(values: tuple[float, ...]) -> str:
    return " / ".join(f"{percentile(values, share):.2f} s" for share in (0.5, 0.99, 1.0))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--seed", type=int, default=None, help="default: a new one")
    options.add_argument("--rate", type=float, default=40.0, help="runs a second")
    given = options.parse_args()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    done = soak(given.minutes, seed, given.rate)
    for name, value in done.rows():
        print(f"{name:<52} {value}")
    if broken := done.faulty():
        raise SystemExit("\n".join(broken))


if __name__ == "__main__":
    main()
