"""One use case in a process that meets one fault, then the rest of the system, then the checkers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from runlane.adapters.postgres.audit import PostgresAudit
from runlane.adapters.postgres.connection import FixedSource, Run, Session
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.adapters.sqs.envelope import encode_wakeup, parse_wakeup
from runlane.domain.errors import RunlaneError
from runlane.domain.ids import RunId
from runlane.domain.queue import Queue, Throttle
from runlane.domain.retry import Exponential, Retry
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.ports.stores import Wakeup
from runlane.runtime import Runlane
from runlane.services.context import Context
from runlane.services.delivery import Record
from runlane.services.lane import Lane
from runlane.services.trigger import TriggerResult
from tests.faults.doom import Died, Doom, DoomedConnection, DoomedStorage, DoomedWire, Fault, Impatient, Step, Strikes
from tests.faults.line import Line
from tests.functions.world import Wire
from tests.postgres import factories
from tests.postgres.invariants import Within

ENVIRONMENT = "test"
ROUNDS = 12
MAX_ATTEMPTS = 3
QUEUES = (
    Queue("main", default=True),
    Queue("one", concurrency_limit=1),
    Queue("total", total_limit=1),
    Queue("ordered"),
    Queue("slow", throttle=Throttle(1, "20ms")),
)
ORDERED = frozenset({"ordered"})

Act = Callable[[], Any]
Case = Callable[["Play"], Generator[Act | None, Any, None]]
"""Prepares and yields what the doomed process does; is sent its `Outcome`; may yield once more, while the rest works; then checks."""


@dataclass(frozen=True)
class Outcome:
    """`is_done`: it returned `value`, and whoever called it may rely on that."""

    is_done: bool
    value: Any = None


class Play:
    """`doomed` and `rest` are two processes; what the one has sent stays on the wire when it dies."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.wire = Wire(ORDERED)
        self.lane = factories.Lane(stage.rest, stage.onlooker)
        self.behaviours: dict[str, Callable[[Context], Any]] = {"succeed": lambda ctx: "done"}
        self.tries = Counter[RunId]()
        self.acknowledged: set[RunId] = set()
        self.storage = stage.doomed
        self.tasks = self._tasks()
        self.work, self.brittle, self.hasty = self.tasks
        self.rest = self.process(Lane(stage.rest, self.wire, parse_wakeup))
        self.doomed = self.process(self.doomed_lane)

    @property
    def doomed_lane(self) -> Lane:
        return Lane(self.storage, DoomedWire(self.wire, self.stage.doom), parse_wakeup)

    def process(self, lane: Lane, **options: Any) -> Runlane:
        options = {"queues": QUEUES, "tasks": self.tasks, "continue_inline_for": "0s", **options}
        return Runlane(lane=lane, environment=ENVIRONMENT, clock=Impatient(), worker_concurrency=2, **options)

    def _tasks(self) -> tuple[Any, Any, Any]:
        @task("work", retry=Retry(max_attempts=MAX_ATTEMPTS, backoff=Exponential("1h", max="1h")))
        def work(payload: str, ctx: Context) -> Any:
            self.tries[ctx.run_id] += 1
            return self.behaviours[payload](ctx)

        @task("brittle", retry=Retry(max_attempts=1))
        def brittle(payload: str, ctx: Context) -> Any:
            self.tries[ctx.run_id] += 1
            raise ValueError(payload)

        @task("hasty", start_timeout="1h", finish_timeout="1h")
        def hasty(payload: str, ctx: Context) -> str:
            self.tries[ctx.run_id] += 1
            return payload

        return work, brittle, hasty

    # What cases prepare, by the rest of the system.

    def trigger(self, behaviour: str = "succeed", **options: Any) -> RunId:
        return self.acknowledge(self.rest.trigger(self.work, behaviour, **options))[0]

    def acknowledge(self, results: TriggerResult | Sequence[TriggerResult]) -> list[RunId]:
        found = [results] if isinstance(results, TriggerResult) else list(results)
        self.acknowledged.update(one.run.run_id for one in found)
        return [one.run.run_id for one in found]

    def finished(self, behaviour: str = "succeed", **options: Any) -> RunId:
        run_id = self.trigger(behaviour, **options)
        self.deliver_sent()
        return run_id

    def failed(self, **options: Any) -> RunId:
        (run_id,) = self.acknowledge(self.rest.trigger(self.brittle, "no", **options))
        self.deliver_sent()
        return run_id

    def hint(self, run_id: RunId, queue: str = "main") -> Wakeup:
        return Wakeup(run_id, queue, hint=True)

    def lose_messages(self) -> None:
        self.wire.take()
        self.wire.delayed.clear()

    # What delivers.

    def deliver(self, *wakeups: Wakeup, process: Runlane | None = None, group: str | None = None) -> Act:
        """One delivery of the doomed process; what it does not acknowledge comes again."""

        def act() -> None:
            records = {str(place): Record(str(place), self._read(one), group) for place, one in enumerate(wakeups)}
            failed: Collection[str] = tuple(records)
            try:
                failed = (process or self.doomed).execute_deliveries(list(records.values()))
            finally:
                self.wire.sent.extend(wakeups[int(place)] for place in failed)

        return act

    def deliver_sent(self, times: int = 1) -> None:
        """Deliver all that is on the wire, and what comes of it, so many times."""
        # What is delayed once more is not due yet, whatever was made of its run.
        wakeups = [*self.wire.take(), *self.wire.delayed]
        self.wire.delayed.clear()
        while wakeups:
            for _ in range(times):
                records = [
                    Record(f"{place}", self._read(one), one.queue if one.queue in ORDERED else None) for place, one in enumerate(wakeups)
                ]
                returned = self.rest.execute_deliveries(records)
                # A wakeup of an ordered queue is kept while its run stands in line.
                assert all(wakeups[int(place)].queue in ORDERED for place in returned), "the rest of the system is well"
            wakeups = self.wire.take()

    def _read(self, wakeup: Wakeup) -> Any:
        return parse_wakeup(encode_wakeup(ENVIRONMENT, wakeup, datetime.now(UTC)), ENVIRONMENT)

    # The rest of the system.

    def finish(self) -> None:
        for turn in range(ROUNDS):
            self.stage.age(expire=turn > 1)
            report = self.rest.tick()
            assert report["failed"] == [], report
            # What the pass itself has put off.
            self.stage.age(expire=False)
            self.deliver_sent(times=2 if turn == 0 else 1)
            if not self._open() and not self.wire.sent:
                return
        raise AssertionError(f"never ended: {self._open()}")

    def _open(self) -> list[Any]:
        return self.lane.connection.execute(_OPEN).fetchall()

    def status(self, run_id: RunId) -> Status:
        return self.rest.runs.get(run_id).status

    def children(self, run_id: RunId) -> list[Any]:
        return [one for one in self.rest.runs.list().data if one.source_run_id == run_id]

    def runs(self) -> int:
        return int(self.lane.value("SELECT count(*) FROM runlane.run"))


_OPEN = b"SELECT r.run_id::text FROM runlane.run r LEFT JOIN runlane.outcome o USING (run_id) WHERE o.run_id IS NULL"
_AGED = b"""
WITH t AS (UPDATE runlane.timer SET due_at = clock_timestamp() - interval '1 hour'),
     l AS (UPDATE runlane.lease SET expires_at = clock_timestamp() - interval '1 hour')
UPDATE runlane.dispatch SET publish_claimed_at = clock_timestamp() - interval '1 hour',
    expires_at = CASE WHEN %s THEN clock_timestamp() - interval '1 hour' ELSE expires_at END
"""
# What the audit asks, in words of this folder: a release and a hand-back give the attempt back.
_CHECKS = {
    "a run was claimed more often than it may": b"""
SELECT run_id, string_agg(type, ' ' ORDER BY seq) FROM runlane.event JOIN runlane.run USING (run_id)
GROUP BY run_id, max_attempts
HAVING count(*) FILTER (WHERE type = 'run.claimed') - count(*) FILTER (WHERE type IN ('run.released', 'run.rescheduled')) > max_attempts
""",
    "a run has not exactly one end": b"""
SELECT r.run_id, o.status, string_agg(e.type, ' ' ORDER BY e.seq)
FROM runlane.run r LEFT JOIN runlane.outcome o USING (run_id) LEFT JOIN runlane.event e USING (run_id) GROUP BY 1, 2
HAVING o.status IS NULL OR count(*) FILTER (WHERE e.type IN ('run.succeeded', 'run.failed', 'run.cancelled')) <> 1
""",
}


class Prepared(Within):
    """Planning takes longer than looking, as most tables are partitioned. Nothing else happens meanwhile, so that no snapshot is needed."""

    def run(self, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        return self._outer.execute(self._statements[name], parameters, prepare=True).fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[Run]:
        yield self.run


class Stage:
    """A database with a trigger on every table, a line to it that can be cut, and two processes' storages, kept warm from play to play."""

    def __init__(self, dsn: str) -> None:
        self.onlooker = psycopg.connect(make_conninfo(dsn, options="-c jit=off"), autocommit=True)
        self._plays = count(1)
        self.strikes = Strikes(self.onlooker)
        self._kept = self.onlooker.execute(_TABLE_NAMES).fetchall()
        # What is prepared, aged and swept away by the test itself meets no trigger.
        self.onlooker.execute("SET session_replication_role = replica")
        self.onlooker.execute("CREATE TABLE faults.caller (number int)")
        self.line = Line(dsn)
        self.dsn = dsn
        self.doom = Doom(self.line, self.strikes)
        self.doomed = DoomedStorage(self.doom)
        self.rest = PostgresStorage(dsn)
        self._checker = PostgresAudit(Prepared(self.onlooker))
        self.audit = PostgresAudit(Session(FixedSource(dsn), "runlane"))

    def close(self) -> None:
        self.doom.spare()
        PostgresStorage.close(self.doomed)
        self.rest.close()
        self.audit.close()
        self.onlooker.close()
        self.line.close()

    def age(self, *, expire: bool) -> None:
        """Timers, leases and publications; unclaimed dispatches only if asked, as what is to be published would be taken back."""
        self.onlooker.execute(_AGED, (expire,))

    def caller(self) -> DoomedConnection:
        """A caller's own connection, through the line, with work of its own under way."""
        connection = DoomedConnection.connect(self.line.dsn)
        connection.doom = self.doom
        connection.execute("INSERT INTO faults.caller VALUES (1)")
        return connection

    def play(self, case: Case, fault: Fault | None = None) -> list[Step]:
        """The steps of the doomed process; raises `AssertionError` for whatever does not hold at the end."""
        self._empty()
        self.doom.spare()
        play = Play(self)
        play.rest.queues.put_in_force(actor="test")
        script = case(play)
        act = next(script)
        assert act is not None
        self.doom.fault = fault
        outcome = self._outcome(act)
        steps, struck, surprises = self.doom.steps, self.doom.is_struck, self.doom.surprises
        assert struck == (fault is not None), "the process never came there"
        assert not surprises, surprises
        play.doomed.parts.close()  # Its idle threads; nothing is flushed.
        with suppress(StopIteration):
            script.send(outcome)
        play.finish()
        with suppress(StopIteration):
            next(script)
        self._check(play)
        play.rest.parts.close()
        return steps

    def _outcome(self, act: Act) -> Outcome:
        try:
            return Outcome(True, self.doom.watch(act))
        except (RunlaneError, psycopg.OperationalError, Died):
            assert self.doom.is_struck, "nothing was to fail"
            return Outcome(False)

    def _check(self, play: Play) -> None:
        broken = {name: rows for name, query in _CHECKS.items() if (rows := self.onlooker.execute(query, prepare=True).fetchmany(5))}
        assert not broken, broken
        found = [(one.name, one.violations) for one in self._checker.check() if not one.holds]
        assert not found, found
        lost = play.acknowledged - {run_id for (run_id,) in self.onlooker.execute("SELECT run_id::text FROM runlane.run")}
        assert not lost, f"acknowledged and lost: {lost}"
        assert all(times <= MAX_ATTEMPTS for times in play.tries.values()), play.tries

    def _empty(self) -> None:
        written = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {} WHERE EXISTS (SELECT 1 FROM {})").format(name, sql.Identifier("runlane", name)) for (name,) in self._kept
        )
        for (table,) in self.onlooker.execute(written, prepare=True).fetchall():
            self.onlooker.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier("runlane", table)))
        self.onlooker.execute("DELETE FROM faults.caller")


_TABLE_NAMES = b"""
SELECT relname FROM pg_class WHERE relnamespace = 'runlane'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
   AND relname NOT IN ('migration', 'environment') ORDER BY 1
"""
