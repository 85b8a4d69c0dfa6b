"""A process that meets one fault: every round trip of its storage, every commit and every publication passes through here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import sql

from runlane.adapters.postgres.bell import PostgresBell
from runlane.adapters.postgres.connection import FixedSource, Run, Session
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import UnavailableError
from runlane.ports.clock import SystemClock
from runlane.ports.stores import PublishResult, Wakeup
from tests.faults.line import Cut, Line
from tests.functions.world import Wire

T = TypeVar("T")


class Died(BaseException):
    """The process ends here: nothing after it happens, on any of its threads."""


class Kind(Enum):
    DIES_BEFORE = "the process dies before it"
    DIES_AFTER = "the process dies after it, its answer unread"
    REQUEST_CUT = "the connection is cut before it arrives"
    ANSWER_CUT = "the connection is cut after it, its answer lost"
    REFUSED_INSIDE = "it is refused at a write inside"
    TERMINATED_INSIDE = "its backend is terminated at a write inside"
    SENDING_REFUSED = "the transport refuses all"
    SENDING_HALVED = "the transport refuses every other"
    SENDING_BREAKS = "the transport breaks its promise"


INSIDE = (Kind.REFUSED_INSIDE, Kind.TERMINATED_INSIDE)
STATEMENT = (Kind.DIES_BEFORE, Kind.DIES_AFTER, Kind.REQUEST_CUT, Kind.ANSWER_CUT)
SENDING = (Kind.DIES_BEFORE, Kind.DIES_AFTER, Kind.SENDING_REFUSED, Kind.SENDING_HALVED, Kind.SENDING_BREAKS)


class Step(NamedTuple):
    """One round trip or publication; `writes`: how many statements it has written with, inside."""

    name: str
    writes: int = 0

    def faults(self, place: int) -> list[Fault]:
        if self.name == PUBLISH:
            return [Fault(place, self.name, kind) for kind in SENDING]
        # Each write inside is refused in turn. A backend that is terminated does no less than that, and costs the next statements a new
        # connection; so that is shown once, at the last write.
        inside = [Fault(place, self.name, Kind.REFUSED_INSIDE, write) for write in range(1, self.writes + 1)]
        terminated = [Fault(place, self.name, Kind.TERMINATED_INSIDE, self.writes)] if self.writes else []
        return [*(Fault(place, self.name, kind) for kind in STATEMENT), *inside, *terminated]


class Fault(NamedTuple):
    place: int
    name: str
    kind: Kind
    write: int = 0

    def __str__(self) -> str:
        return f"{self.place}. {self.name}: {self.kind.value}{f' ({self.write})' if self.write else ''}"


PUBLISH = "publish"
COMMIT = "commit of the caller"
DETACH = "detach"


class Strikes:
    """Counts the statements that write inside another, and fails the one that is asked for: triggers on every table, and on DDL."""

    FAR = -(10**12)

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.execute(_STRIKES)
        tables = connection.execute(_TABLES).fetchall()
        for (table,) in tables:
            connection.execute(_TRIGGER.format(sql.Identifier("runlane", table)))
        self.disarm()

    def arm(self, write: int, *, terminate: bool) -> None:
        self._connection.execute("SELECT setval('faults.left', %s, false), setval('faults.how', %s, false)", (1 - write, int(terminate)))

    def disarm(self) -> None:
        self._connection.execute("SELECT setval('faults.left', %s, false)", (self.FAR,))

    @property
    def is_spent(self) -> bool:
        """Whether it came to the write that was to fail. How many there are may depend on what the clock says."""
        row = self._connection.execute("SELECT last_value >= 0 AND is_called FROM faults.left").fetchone()
        return bool(row and row[0])

    def count(self) -> int:
        row = self._connection.execute("SELECT last_value + is_called::int FROM faults.left").fetchone()
        assert row is not None
        return int(row[0]) - self.FAR


_STRIKES = b"""
CREATE SCHEMA faults;
CREATE SEQUENCE faults.left MINVALUE -1000000000000 START 1;
CREATE SEQUENCE faults.how MINVALUE 0 START 0;
CREATE FUNCTION faults.strike() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- A sequence goes on whatever is rolled back, and what is refused is tried again.
    IF nextval('faults.left') = 0 THEN
        IF (SELECT last_value FROM faults.how) = 1 THEN
            PERFORM pg_terminate_backend(pg_backend_pid());
        ELSE
            RAISE EXCEPTION 'struck' USING ERRCODE = 'query_canceled';
        END IF;
    END IF;
END $$;
CREATE FUNCTION faults.on_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM faults.strike(); RETURN NULL; END $$;
CREATE FUNCTION faults.on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM faults.strike(); END $$;
CREATE EVENT TRIGGER strike ON ddl_command_start EXECUTE FUNCTION faults.on_ddl();
"""
_TABLES = b"""
SELECT relname FROM pg_class WHERE relnamespace = 'runlane'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
"""
_TRIGGER = sql.SQL("CREATE TRIGGER strike AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH STATEMENT EXECUTE FUNCTION faults.on_write()")


class Doom:
    def __init__(self, line: Line, strikes: Strikes) -> None:
        self.line = line
        self._strikes = strikes
        self._is_watching = False
        self.spare()

    def spare(self) -> None:
        """For the next process: no fault, or one that is set now."""
        self.fault: Fault | None = None
        self.is_struck = self.is_dead = False
        self.steps: list[Step] = []
        self.surprises: list[str] = []
        """What makes this no test of the fault; noted, as the product may survive what is raised."""

    def watch(self, act: Callable[[], T]) -> T:
        self._is_watching = True
        try:
            return act()
        finally:
            self._is_watching = False
            self._strikes.disarm()

    def statement(self, name: str, connection: psycopg.Connection | None, do: Callable[[], T]) -> T:
        kind = self._begin(name)
        if kind is None:
            return self._counted(name, do)
        fault = self.fault
        assert fault is not None
        self._die_if(kind is Kind.DIES_BEFORE)
        if kind in INSIDE:
            self._strikes.arm(fault.write, terminate=kind is Kind.TERMINATED_INSIDE)
        elif kind in (Kind.REQUEST_CUT, Kind.ANSWER_CUT) and connection is not None:
            self.line.cut(connection.fileno(), Cut.REQUEST if kind is Kind.REQUEST_CUT else Cut.ANSWER)
        elif kind is Kind.REQUEST_CUT:
            raise UnavailableError("storage_unavailable", "cut")
        answer = do()
        self._die_if(kind is Kind.DIES_AFTER)
        if kind is Kind.ANSWER_CUT and connection is None:
            raise UnavailableError("storage_unavailable", "cut")
        if kind not in INSIDE or (self._strikes.is_spent and connection is not None):
            self.surprises.append("it did no harm")
        return answer

    def sending(self, wire: Wire, wakeups: Sequence[Wakeup], send: Callable[[], tuple[PublishResult, ...]]) -> tuple[PublishResult, ...]:
        kind = self._begin(PUBLISH)
        self._die_if(kind is Kind.DIES_BEFORE)
        turns = iter(range(len(wakeups)))
        refuses = wire.refuses
        if kind is Kind.SENDING_BREAKS:
            raise RuntimeError("the transport breaks its promise")
        if kind is Kind.SENDING_REFUSED:
            wire.refuses = lambda wakeup: True
        if kind is Kind.SENDING_HALVED:
            wire.refuses = lambda wakeup: next(turns) % 2 == 0
        try:
            sent = send()
        finally:
            wire.refuses = refuses
        if kind is None and self._is_watching:
            self.steps.append(Step(PUBLISH))
        self._die_if(kind is Kind.DIES_AFTER)
        return sent

    def _begin(self, name: str) -> Kind | None:
        if self.is_dead:
            raise Died(name)
        if not self._is_watching or self.fault is None or self.is_struck or len(self.steps) < self.fault.place:
            return None
        if name != self.fault.name:
            self.surprises.append(f"{name} stands there now")
        self.is_struck = True
        return self.fault.kind

    def _die_if(self, dies: bool) -> None:
        if dies:
            self.is_dead = True
            raise Died

    def _counted(self, name: str, do: Callable[[], T]) -> T:
        if not self._is_watching:
            return do()
        if self.fault is not None:
            self.steps.append(Step(name))
            return do()
        before = self._strikes.count()
        answer = do()
        self.steps.append(Step(name, self._strikes.count() - before))
        return answer


class DoomedSession(Session):
    doom: Doom

    def _live(self) -> Any:
        return _Watched(super()._live(), self.doom, {text: name for name, text in self._statements.items()})

    @contextmanager
    def snapshot(self) -> Iterator[Run]:
        with super().snapshot() as run:
            yield lambda name, parameters: self.doom.statement(name, self._connection, lambda: run(name, parameters))

    def run_on(self, connection: psycopg.Connection, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        return self.doom.statement(name, connection, lambda: super(DoomedSession, self).run_on(connection, name, parameters))

    def run_alone(self, statement: sql.Composed, *, patience: float) -> bool:
        return self.doom.statement(DETACH, None, lambda: super(DoomedSession, self).run_alone(statement, patience=patience))


class _Watched:
    def __init__(self, cursor: psycopg.Cursor, doom: Doom, names: Mapping[bytes, str]) -> None:
        self._cursor = cursor
        self._doom = doom
        self._names = names

    @property
    def connection(self) -> psycopg.Connection:
        return self._cursor.connection

    def execute(self, statement: bytes, parameters: Mapping[str, Any]) -> psycopg.Cursor:
        return self._doom.statement(self._names[statement], self._cursor.connection, lambda: self._cursor.execute(statement, parameters))


class DoomedBell(PostgresBell):
    doom: Doom

    def _renew(self, connection: psycopg.Connection) -> None:
        self.doom.statement("keep_polled", connection, lambda: super(DoomedBell, self)._renew(connection))


class DoomedStorage(PostgresStorage):
    """Stays open when it is closed, for the next process."""

    def __init__(self, doom: Doom) -> None:
        super().__init__(doom.line.dsn)
        self.doom = doom
        for session in (self._work, self._heartbeat):
            # The stores hold these two objects already.
            session.__class__ = DoomedSession
            session.doom = doom  # type: ignore[attr-defined]

    def session(self) -> Session:
        """The one that most statements run on, for the stores that a process makes for itself."""
        return self._work

    def bell(self, queues: Any) -> DoomedBell:
        bell = DoomedBell(FixedSource(self.doom.line.dsn), "runlane", queues)
        bell.doom = self.doom
        return bell

    def close(self) -> None:
        pass


class DoomedConnection(psycopg.Connection[Any]):
    """A caller's own."""

    doom: Doom

    def commit(self) -> None:
        self.doom.statement(COMMIT, self, super().commit)


class DoomedWire:
    """One end of a wire that outlives whoever sends."""

    def __init__(self, wire: Wire, doom: Doom) -> None:
        self._wire = wire
        self._doom = doom

    def publish(self, wakeups: Sequence[Wakeup]) -> tuple[PublishResult, ...]:
        return self._doom.sending(self._wire, wakeups, lambda: self._wire.publish(wakeups))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)


class Impatient(SystemClock):
    """What a process waits for between tries is over at once."""

    def sleep(self, seconds: float) -> None:
        pass
