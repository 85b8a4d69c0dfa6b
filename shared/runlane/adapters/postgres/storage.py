"""The storage half of a lane: all stores over two sessions."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from runlane.adapters.postgres.bell import PostgresBell
from runlane.adapters.postgres.connection import ConnectionSource, FixedSource, Session
from runlane.adapters.postgres.delivery import PostgresDeliveryStore
from runlane.adapters.postgres.trigger import PostgresTriggerStore

if TYPE_CHECKING:
    from runlane.adapters.postgres.maintenance import PostgresMaintenanceStore
    from runlane.adapters.postgres.operations import PostgresOperationStore
    from runlane.adapters.postgres.queues import PostgresQueueStore
    from runlane.adapters.postgres.runs import PostgresRunStore
    from runlane.adapters.postgres.schedules import PostgresScheduleStore
    from runlane.domain.verification import Invariant, Scope


class PostgresStorage:
    """Storage of one environment in one schema; connects on first use.

    `source` is a libpq connection string or something that fetches one, asked again when a login fails.
    """

    def __init__(self, source: ConnectionSource | str, *, schema: str = "runlane", lease_for: timedelta = timedelta(seconds=60)) -> None:
        found = FixedSource(source) if isinstance(source, str) else source
        self._source, self._schema, self._lease_for = found, schema, lease_for
        self._work, self._heartbeat = Session(found, schema), Session(found, schema)
        self.triggers = PostgresTriggerStore(self._work)
        self.deliveries = PostgresDeliveryStore(self._work, self._heartbeat)

    # What no delivery needs costs no cold start anything.

    @cached_property
    def maintenance(self) -> PostgresMaintenanceStore:
        from runlane.adapters.postgres.maintenance import PostgresMaintenanceStore

        return PostgresMaintenanceStore(self._work)

    @cached_property
    def runs(self) -> PostgresRunStore:
        from runlane.adapters.postgres.runs import PostgresRunStore

        return PostgresRunStore(self._work)

    @cached_property
    def operations(self) -> PostgresOperationStore:
        from runlane.adapters.postgres.operations import PostgresOperationStore

        return PostgresOperationStore(self._work)

    @cached_property
    def queues(self) -> PostgresQueueStore:
        from runlane.adapters.postgres.queues import PostgresQueueStore

        return PostgresQueueStore(self._work, lease_for=self._lease_for)

    @cached_property
    def schedules(self) -> PostgresScheduleStore:
        from runlane.adapters.postgres.schedules import PostgresScheduleStore

        return PostgresScheduleStore(self._work)

    def verify(self, scope: Scope, limit: int) -> tuple[Invariant, ...]:
        from runlane.adapters.postgres.audit import PostgresAudit

        # On a connection of its own: it may take long, and nobody's claim should wait for it.
        with closing(PostgresAudit(Session(self._source, self._schema))) as audit:
            return audit.check(scope, limit=limit)

    def bell(self, queues: Collection[str]) -> PostgresBell:
        return PostgresBell(self._source, self._schema, queues)

    def close(self) -> None:
        self._work.close()
        self._heartbeat.close()
