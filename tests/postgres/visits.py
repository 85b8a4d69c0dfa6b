"""How many rows and buffers the statements of a function visit, told by `auto_explain`: counts, which no noise can touch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg

from runlane.adapters.postgres.connection import FixedSource, Parameters, Session
from runlane.adapters.postgres.delivery import PostgresDeliveryStore
from runlane.adapters.postgres.maintenance import PostgresMaintenanceStore
from runlane.adapters.postgres.operations import PostgresOperationStore
from runlane.adapters.postgres.queues import PostgresQueueStore
from runlane.adapters.postgres.runs import PostgresRunStore
from runlane.adapters.postgres.schedules import PostgresScheduleStore
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.adapters.postgres.trigger import PostgresTriggerStore

_LEASE = timedelta(seconds=60)
_WATCH = (
    "LOAD 'auto_explain'",
    "SET auto_explain.log_nested_statements = on",
    "SET auto_explain.log_analyze = on",
    "SET auto_explain.log_timing = off",
    "SET auto_explain.log_buffers = on",
    "SET auto_explain.log_format = 'json'",
    "SET client_min_messages = 'log'",
)
_REMOVED = ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")


class WatchedSession(Session):
    """Runs its statements on one connection, and counts what they visit while it watches.

    `rows`: by the text of a statement, rows that passed through any node of its plan, each as often as it did. `buffers`: likewise,
    pages that were asked for.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__(FixedSource(dsn), "runlane")
        self.rows, self.buffers = Counter[str](), Counter[str]()
        self._watched = psycopg.connect(dsn, autocommit=True)
        self._watched.add_notice_handler(self._note)
        for statement in _WATCH:
            self._watched.execute(statement.encode())

    def run(self, name: str, parameters: Parameters) -> list[Any]:
        return self.run_on(self._watched, name, parameters() if callable(parameters) else parameters)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.rows.clear()
        self.buffers.clear()
        self._watched.execute(b"SET auto_explain.log_min_duration = 0")
        yield
        self._watched.execute(b"SET auto_explain.log_min_duration = -1")

    def close(self) -> None:
        self._watched.close()

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        _, _, told = (notice.message_primary or "").partition("plan:\n")
        if told:
            explained = json.loads(told)
            text, plan = " ".join(explained["Query Text"].split()), explained["Plan"]
            self.rows[text] += round(_rows(plan))
            self.buffers[text] += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


class WatchedStorage(PostgresStorage):
    """A storage of which every statement goes through one watched session."""

    def __init__(self, dsn: str) -> None:
        self.session = WatchedSession(dsn)
        self.triggers = PostgresTriggerStore(self.session)
        self.deliveries = PostgresDeliveryStore(self.session, self.session)
        self.maintenance = PostgresMaintenanceStore(self.session)
        self.operations = PostgresOperationStore(self.session)
        self.runs = PostgresRunStore(self.session)
        self.queues = PostgresQueueStore(self.session, lease_for=_LEASE)
        self.schedules = PostgresScheduleStore(self.session)

    def close(self) -> None:
        self.session.close()


def _rows(node: Mapping[str, Any]) -> float:
    visited = node["Actual Rows"] + sum(node.get(removed, 0) for removed in _REMOVED)
    return visited * node["Actual Loops"] + sum(_rows(child) for child in node.get("Plans", ()))
