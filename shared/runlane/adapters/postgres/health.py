"""Reads of the catalog and of statistics; what the role may not see is absent or None."""

from __future__ import annotations

from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.partitions import WEEKS_AHEAD
from runlane.ports.health import HorizonHolder, IdAges, PartitionGap, SchemaState, ServerState, TableState, UpkeepState


class PostgresHealth:
    def __init__(self, session: Session) -> None:
        self._session = session

    def server(self) -> ServerState:
        (row,) = self._session.run("health_server", {})
        return ServerState(*row)

    def schema(self) -> SchemaState:
        ((environment, applied),) = self._session.run("health_schema", {})
        return SchemaState(environment, frozenset(applied))

    def horizon(self) -> tuple[HorizonHolder, ...]:
        return tuple(HorizonHolder(*row) for row in self._session.run("health_horizon", {}))

    def tables(self) -> tuple[TableState, ...]:
        return tuple(TableState(*row) for row in self._session.run("health_tables", {}))

    def id_ages(self) -> IdAges:
        (row,) = self._session.run("health_id_ages", {})
        return IdAges(*row)

    def partition_gaps(self) -> tuple[PartitionGap, ...]:
        return tuple(PartitionGap(*row) for row in self._session.run("health_partition_gaps", {"weeks": WEEKS_AHEAD}))

    def upkeep(self) -> UpkeepState:
        (row,) = self._session.run("health_upkeep", {})
        return UpkeepState(*row)

    def close(self) -> None:
        self._session.close()
