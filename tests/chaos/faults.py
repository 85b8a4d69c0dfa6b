"""The faults of a soak, drawn by seed: each is injected, ends by itself, and leaves the rest to the system."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

import psycopg

from runlane.adapters.local.postgres import LocalPostgres
from tests.acceptance.failures.outage import Door
from tests.chaos.stage import LEASE, TICK, ChaosStage
from tests.waiting import PATIENCE

OUTAGE = 1.0
"""Seconds that a server is away."""
RECONNECTS = timedelta(seconds=TICK)
"""A tick that lost its connection is followed by one that has another."""
_OF_THE_DATABASE = ("connections cut", "Postgres killed")


class Faults:
    """`resumed`: seconds from each return of Postgres to the first run that ended after it."""

    def __init__(self, stage: ChaosStage, postgres: LocalPostgres, sqs: Door, random: Random) -> None:
        self._stage = stage
        self._postgres = postgres
        self._sqs = sqs
        self._random = random
        self.counts: Counter[str] = Counter()
        self.resumed: list[float] = []
        self._all: dict[str, tuple[int, Callable[[], None]]] = {
            "worker killed": (12, lambda: stage.kill_worker(spare_first=True)),
            "worker frozen beyond its lease": (2, self._freeze),
            "connections cut": (3, self._cut),
            "Postgres killed": (1, self._kill_postgres),
            "SQS out of reach": (1, self._shut_sqs),
        }

    def inject(self, name: str | None = None) -> None:
        """One of them, the frequent ones more often; returns when it is over."""
        weights = [weight for weight, _ in self._all.values()]
        chosen = name or self._random.choices(list(self._all), weights)[0]
        self.counts[chosen] += 1
        began = datetime.now(UTC)
        self._all[chosen][1]()
        if chosen in _OF_THE_DATABASE:
            self._stage.outages.append((began, datetime.now(UTC) + RECONNECTS))

    def inject_all(self) -> None:
        for name in self._all:
            self.inject(name)

    def _freeze(self) -> None:
        victim = self._random.choice(self._stage.workers[1:])
        victim.send_signal(signal.SIGSTOP)
        time.sleep(LEASE + 1)
        victim.send_signal(signal.SIGCONT)

    def _cut(self) -> None:
        with self._stage.connect() as connection:
            connection.execute(
                b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                b" WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )

    def _kill_postgres(self) -> None:
        self._postgres.kill()
        time.sleep(OUTAGE)
        self._postgres.start()
        self.resumed.append(resumes_in(self._stage))

    def _shut_sqs(self) -> None:
        self._sqs.shut()
        time.sleep(OUTAGE)
        self._sqs.open()


def resumes_in(stage: ChaosStage) -> float:
    """Seconds until a run ends that had not ended when this was asked."""
    began = time.monotonic()
    with stage.connect() as connection:
        before = _ended(connection)
        while _ended(connection) == before:
            assert time.monotonic() < began + PATIENCE, "nothing ends since Postgres has returned"
            time.sleep(0.02)
    return time.monotonic() - began


def _ended(connection: psycopg.Connection) -> int:
    row = connection.execute(b"SELECT count(*) FROM runlane.outcome").fetchone()
    return int(row[0]) if row else 0
