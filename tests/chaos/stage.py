"""Servers of their own, worker processes that are killed and replaced, and what the committed history tells afterwards."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from runlane import bootstrap
from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.local.sqs import LocalQueue, LocalSqs
from runlane.adapters.postgres.migrate import migrate
from runlane.runtime import Runlane
from tests.acceptance.failures.processes import WorkerProcess
from tests.chaos.catalog import APP, MAX_ATTEMPTS
from tests.postgres.invariants import check_invariants

LEASE, TICK = 2.0, 0.5
VISIBILITY = timedelta(seconds=3)
WORKERS = 4
MAINTENANCE = "functions.maintenance.app:handler"
SETTINGS = {"synchronous_commit": "on", "autovacuum_naptime": "5s", "shared_buffers": "256MB", "deadlock_timeout": "200ms"}
_NUMBERS = count(1)


@dataclass(frozen=True)
class Servers:
    postgres: LocalPostgres
    sqs: LocalSqs


@contextmanager
def servers() -> Iterator[Servers]:
    # What a killed client committed must not be in a buffer; that the machine survives may be assumed.
    with LocalPostgres(durable=False, settings=SETTINGS) as postgres, LocalSqs() as sqs:
        _administer(postgres, "CREATE DATABASE migrated")
        with psycopg.connect(make_conninfo(postgres.dsn, dbname="migrated"), autocommit=True) as connection:
            migrate(connection, schema="runlane", environment="test")
        yield Servers(postgres, sqs)


@dataclass(frozen=True)
class Kill:
    """`leases`: when those end that the process held, by run."""

    at: datetime
    leases: dict[str, datetime]


@dataclass
class ChaosStage:
    """The first worker is left alone unless it is asked for; the others are `victims`."""

    runlane: Runlane
    dsn: str
    queue: LocalQueue
    folder: Path
    variables: dict[str, str]
    workers: list[WorkerProcess] = field(default_factory=list)
    ticker: WorkerProcess | None = None
    kills: list[Kill] = field(default_factory=list)
    outages: list[tuple[datetime, datetime]] = field(default_factory=list)
    """Of the database, or of the ways to it."""

    def start(self, workers: int = WORKERS) -> None:
        self.workers = [self._worker() for _ in range(workers)]
        arguments = ("--app", MAINTENANCE, "--maintenance", MAINTENANCE, "--tick-every", str(TICK))
        self.ticker = WorkerProcess(arguments, self.variables, self.folder / "log")

    def kill_worker(self, *, spare_first: bool = False) -> None:
        """SIGKILL to the one that has lived longest, and another in its place."""
        victim = self.workers.pop(int(spare_first))
        at = datetime.now(UTC)
        victim.kill()
        with self.connect() as connection:
            held = (
                "SELECT l.run_id::text, l.expires_at FROM runlane.lease l JOIN runlane.event e ON e.run_id = l.run_id"
                " AND e.attempt = l.attempt AND e.type = 'run.claimed' WHERE e.actor LIKE %s"
            )
            self.kills.append(Kill(at, dict(connection.execute(held, (f"%-{victim.pid}-%",)).fetchall())))
        self.workers.append(self._worker())

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn, autocommit=True)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def ended(self) -> int:
        return int(self.value("SELECT count(*) FROM runlane.outcome"))

    def value(self, query: str, *parameters: object) -> Any:
        with self.connect() as connection:
            row = connection.execute(query.encode(), parameters).fetchone()
        return row[0] if row else None

    def stop(self) -> None:
        for worker in (*self.workers, *((self.ticker,) if self.ticker else ())):
            worker.kill()
        self.runlane.close()

    def _worker(self) -> WorkerProcess:
        arguments = ("--app", "functions.worker.app:handler", "--queue-url", self.queue.url)
        return WorkerProcess(arguments, self.variables, self.folder / "log")


@contextmanager
def chaos_stage(
    found: Servers, seed: int, *, sqs_url: str | None = None, reach: Callable[[str], str] = str, tablespace: str = "pg_default"
) -> Iterator[ChaosStage]:
    """A migrated database and an SQS queue for one play; processes publish by `seed`, and reach SQS at `sqs_url`.

    reach: from the database's connection string to the one that everything but the checks uses.
    """
    name = f"chaos_{next(_NUMBERS)}"
    _administer(found.postgres, f"CREATE DATABASE {name} TEMPLATE migrated STRATEGY file_copy TABLESPACE {tablespace}")
    dsn = make_conninfo(found.postgres.dsn, dbname=name)
    queue = found.sqs.create_queue(f"chaos-{uuid4().hex}", visibility_timeout=VISIBILITY, max_receive_count=1000)
    with tempfile.TemporaryDirectory(prefix="runlane-chaos-") as folder:
        variables = {
            **found.sqs.variables,
            "CHAOS_SEED": str(seed),
            "DATABASE_URL": reach(dsn),
            "NOTES": folder,
            "RUNLANE_APP": APP,
            "RUNLANE_ENVIRONMENT": "test",
            "RUNLANE_LEASE_DURATION": f"{LEASE}s",
            "RUNLANE_QUEUE_URL": queue.url,
            **({"AWS_ENDPOINT_URL": sqs_url} if sqs_url else {}),
        }
        with patch.dict(os.environ, variables):
            os.environ.pop("AWS_LAMBDA_FUNCTION_NAME", None)
            bootstrap.migrate()
            stage = ChaosStage(bootstrap.load_app(APP), dsn, queue, Path(folder), variables)
            try:
                yield stage
            finally:
                stage.stop()


def check(stage: ChaosStage, triggered: list[str], doomed: set[str], asked: set[str]) -> dict[str, int]:
    """Every promise, from the committed history and from what the handlers noted; how many ended with each status.

    doomed: fail whenever they run; asked: to stop, so that what they raise is final.
    """
    with stage.connect() as connection:
        known = set(triggered)
        statuses = dict(connection.execute(b"SELECT run_id::text, status FROM runlane.outcome").fetchall())
        assert known <= statuses.keys(), "a run that a trigger acknowledged is lost, or has not ended"
        # Of a trigger whose answer was cut off nobody knows; what it recorded, if it did, ends all the same.
        failed = connection.execute(b"SELECT run_id::text, failure FROM runlane.outcome WHERE status = 'failed'").fetchall()
        ill = [(run_id, failure) for run_id, failure in failed if run_id in known - doomed - asked and failure["code"] != "lease_expired"]
        assert not ill, f"a run failed that had no reason to: {ill}"
        assert not {run_id for run_id in doomed if statuses[run_id] == "succeeded"}
    check_history(stage)
    starts = Counter(tuple(line.split()[:2]) for line in (stage.folder / "starts").read_text().splitlines())
    assert max(starts.values()) == 1, "one attempt was executed twice"
    # A release begins a new row of attempts; the load's runs release once at most.
    tries = Counter(run_id for run_id, _ in starts)
    assert max(tries.values()) <= MAX_ATTEMPTS + 1
    return dict(Counter(statuses.values()))


def check_history(stage: ChaosStage) -> None:
    """What holds of any database whatever befell it, one that forgot its last second too."""
    with stage.connect() as connection:
        check_invariants(connection)
    auditor = bootstrap.audit()
    broken = [finding for finding in auditor.check() if not finding.holds]
    auditor.close()
    assert not broken, broken


@dataclass(frozen=True)
class Recoveries:
    """Seconds to the recovery of every lease that a killed worker held: after the kill, without those that an outage of the database came
    in between of, and after the lease's end."""

    after_kill: tuple[float, ...]
    after_expiry: tuple[float, ...]

    def __add__(self, other: Recoveries) -> Recoveries:
        return Recoveries(self.after_kill + other.after_kill, self.after_expiry + other.after_expiry)


def recoveries(stage: ChaosStage) -> Recoveries:
    query = "SELECT min(at) FROM runlane.event WHERE run_id = %s AND type = 'run.lease_expired' AND at >= %s"
    after_kill, after_expiry = [], []
    for kill in stage.kills:
        for run_id, expires_at in kill.leases.items():
            recovered_at = stage.value(query, run_id, kill.at)
            # None: the last thing that the process did was to end the run, or to say so again.
            if recovered_at is None:
                continue
            after_expiry.append((recovered_at - expires_at).total_seconds())
            if not any(began < recovered_at and kill.at < ended for began, ended in stage.outages):
                after_kill.append((recovered_at - kill.at).total_seconds())
    return Recoveries(tuple(after_kill), tuple(after_expiry))


def percentile(values: tuple[float, ...], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def wait_for_the_end(stage: ChaosStage, least: int, *, timeout: float) -> None:
    """Until every run that is recorded, at least `least`, has ended."""
    deadline = time.monotonic() + timeout
    query = "SELECT (SELECT count(*) FROM runlane.run) = (SELECT count(*) FROM runlane.outcome)"
    while not (stage.ended() >= least and stage.value(query)):
        assert time.monotonic() < deadline, f"{stage.ended()} of {least} runs have ended; {stage.log[-3000:]}"
        time.sleep(0.1)


def _administer(server: LocalPostgres, statement: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(statement.encode())
