"""A database that lives by the clocks of a place, which are changed twice a year."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise

import psycopg
import pytest
from psycopg import sql

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.queue import Queue
from tests.postgres.factories import Lane

pytestmark = pytest.mark.postgres


@pytest.fixture
def berlin(direct_dsn: str, connection: psycopg.Connection) -> Iterator[Lane]:
    """A lane whose database lives by the clocks of Berlin; `connection` does not."""
    database = sql.Identifier(connection.info.dbname)
    connection.execute(sql.SQL("ALTER DATABASE {} SET timezone = 'Europe/Berlin'").format(database))
    with closing(PostgresStorage(direct_dsn)) as storage:
        lane = Lane(storage, connection)
        lane.queues(Queue("work"))
        yield lane
    connection.execute(sql.SQL("ALTER DATABASE {} RESET timezone").format(database))


@pytest.mark.direct
def test_partitions_made_over_a_clock_change_of_the_database_are_weeks_of_utc_side_by_side(berlin: Lane, direct_dsn: str) -> None:
    with psycopg.connect(direct_dsn) as by_berlin:
        by_berlin.execute("SELECT runlane.ensure_partitions_v1(now(), 60)")
    found = berlin.connection.execute(
        "SELECT right(c.relname, 8), pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'runlane.run'::regclass"
    ).fetchall()
    bounds = sorted(tuple(text.split("'")[1::2]) for _, text in found)
    assert len(bounds) > 52
    assert {datetime.strptime(name, "%Y%m%d").replace(tzinfo=UTC).isoweekday() for name, _ in found} == {1}
    assert all(one[1] == following[0] for one, following in pairwise(bounds))
