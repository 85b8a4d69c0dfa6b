"""Reads of the catalog and of statistics; what the role may not see is absent or None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.partitions import WEEKS_AHEAD
from runlane.domain.errors import UnavailableError
from runlane.ports.health import HorizonHolder, IdAges, PartitionGap, SchemaState, ServerState, StuckWeek, TableState, UpkeepState


class PostgresHealth:
    def __init__(self, session: Session) -> None:
        self._session = session

    def server(self) -> ServerState:
        (row,) = self._read("health_server", {})
        return ServerState(*row)

    def schema(self) -> SchemaState:
        ((environment, applied),) = self._read("health_schema", {})
        return SchemaState(environment, frozenset(applied))

    def horizon(self) -> tuple[HorizonHolder, ...]:
        return tuple(HorizonHolder(*row) for row in self._read("health_horizon", {}))

    def tables(self) -> tuple[TableState, ...]:
        return tuple(TableState(*row) for row in self._read("health_tables", {}))

    def id_ages(self) -> IdAges:
        (row,) = self._read("health_id_ages", {})
        return IdAges(*row)

    def partition_gaps(self) -> tuple[PartitionGap, ...]:
        return tuple(PartitionGap(*row) for row in self._read("health_partition_gaps", {"weeks": WEEKS_AHEAD}))

    def upkeep(self) -> UpkeepState:
        (row,) = self._read("health_upkeep", {})
        return UpkeepState(*row)

    def stuck_weeks(self) -> tuple[StuckWeek, ...]:
        return tuple(StuckWeek(*row) for row in self._read("health_stuck_weeks", {}))

    def _read(self, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        try:
            return self._session.run(name, parameters)
        except UnavailableError as error:
            if not isinstance(error.__cause__, psycopg.Error):
                raise
            cause = " ".join(str(error.__cause__).split())
            raise UnavailableError(error.code, f"the database at {self._session.address()}: {cause}") from error

    def close(self) -> None:
        self._session.close()
