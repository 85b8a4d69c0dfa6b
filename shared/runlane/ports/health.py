"""What a database tells about its health. Each read is one statement, and each field that a role may not see is None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ServerState:
    """`role`: quoted as SQL takes it. `now`: the database's clock. Time-outs: of this role's sessions; None: none. `connections`: in
    use, of `most_connections`."""

    version: str
    role: str
    now: datetime
    most_connections: int
    connections: int
    autovacuum: bool
    statement_timeout: timedelta | None
    idle_in_transaction_timeout: timedelta | None
    sees_others: bool


@dataclass(frozen=True, slots=True)
class SchemaState:
    """`environment` None: not claimed yet. `applied`: numbers of migrations."""

    environment: str | None
    applied: frozenset[int]


@dataclass(frozen=True, slots=True)
class HorizonHolder:
    """What keeps old row versions from being vacuumed: a session, a prepared transaction, a slot or a standby. `age` in transactions."""

    kind: str
    name: str
    age: int
    held_for: timedelta | None
    remedy: str


@dataclass(frozen=True, slots=True)
class TableState:
    name: str
    dead_rows: int
    autovacuum: bool


@dataclass(frozen=True, slots=True)
class IdAges:
    """Of the database of the server in which each is oldest."""

    xid_age: int
    xid_database: str
    mxid_age: int
    mxid_database: str


@dataclass(frozen=True, slots=True)
class PartitionGap:
    """A week, 0 the present one, for which a table has no attached partition."""

    weeks_ahead: int
    table: str


@dataclass(frozen=True, slots=True)
class UpkeepState:
    """`ticked_for`: since the last pass; None: there was none. `failed_phases`: of that pass. `overdue_*`: by how much the oldest is late;
    None: none is."""

    ticked_for: timedelta | None
    failed_phases: Sequence[str]
    overdue_timer: timedelta | None
    overdue_dispatch: timedelta | None
    overdue_schedule: timedelta | None
    pending_detaches: Sequence[str]


@dataclass(frozen=True, slots=True)
class StuckWeek:
    """A week past its time that could not be dropped: SQLSTATE, and what the server said."""

    week: date
    sqlstate: str
    message: str


class Health(Protocol):
    def server(self) -> ServerState: ...

    def schema(self) -> SchemaState: ...

    def horizon(self) -> tuple[HorizonHolder, ...]:
        """The oldest first."""
        ...

    def tables(self) -> tuple[TableState, ...]:
        """Those whose rows come and go."""
        ...

    def id_ages(self) -> IdAges: ...

    def partition_gaps(self) -> tuple[PartitionGap, ...]: ...

    def upkeep(self) -> UpkeepState: ...

    def stuck_weeks(self) -> tuple[StuckWeek, ...]:
        """The oldest first."""
        ...
