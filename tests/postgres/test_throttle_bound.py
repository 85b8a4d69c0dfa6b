"""The rule that decides over starts, at instants that hypothesis chooses: no period sees more, and a little lateness costs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runlane.domain.queue import Throttle
from tests.postgres.factories import Lane

pytestmark = pytest.mark.postgres
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
ROWS = 3
ASK = """
SELECT coalesce(cardinality(t.starts), 0) FROM runlane.queue q, runlane.take_starts_v1(
    q, (SELECT array_agg(run_id) FROM (SELECT run_id FROM runlane.dispatch LIMIT %s) x),
    (SELECT array_agg(partition_id) FROM runlane.partition), %s) t
WHERE q.name = 'work'
"""

throttles = st.builds(
    Throttle,
    st.integers(1, 12),
    st.sampled_from(["7ms", "100ms", "1s", "1m", "3h"]),
    st.integers(0, 5),
)
shares = st.lists(st.tuples(st.floats(0, 1.5), st.integers(1, ROWS)), min_size=5, max_size=30)
"""Steps of time, as parts of a step of the throttle, and how many ask then."""


@pytest.fixture
def asked(lane: Lane) -> Iterator[Lane]:
    """Rows that may ask to start at any time, of one partition. What they ask for is undone at the end."""
    with lane.connection.transaction(force_rollback=True):
        lane.connection.execute(
            b"INSERT INTO runlane.queue (name, dispatch_timeout, dispatch_window, policy) VALUES ('work', '1m', 9, '{}')"
        )
        lane.connection.execute(b"INSERT INTO runlane.partition (queue_id) SELECT queue_id FROM runlane.queue")
        lane.connection.execute(
            "INSERT INTO runlane.dispatch (run_id, queue_id, partition_id, due_at, priority, status, attempt, failures, seq, expiries,"
            " dispatched_at, start_at, expires_at, publish_claimed_at)"
            " SELECT gen_random_uuid(), queue_id, partition_id, now(), 0, 'queued', 0, 0, 1, 0, now(), '2000-01-01', now(), now()"
            " FROM runlane.partition, generate_series(1, %s)",
            (ROWS,),
        )
        yield lane


def throttle_by(connection: psycopg.Connection, throttle: Throttle) -> tuple[timedelta, timedelta]:
    """Put the terms in force, on a fresh clock; the step and the slack."""
    connection.execute(b"UPDATE runlane.partition SET throttle_clock = '-infinity'")
    row = connection.execute(
        "UPDATE runlane.queue SET (throttle_step, throttle_burst, throttle_slack, throttle_ahead) ="
        " (SELECT * FROM runlane.throttle_terms_v1(%s, %s, %s, NULL)) RETURNING throttle_step, throttle_slack",
        (throttle.limit, throttle.period, throttle.burst),
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def starts(connection: psycopg.Connection, asks: Iterable[tuple[datetime, int]]) -> list[datetime]:
    found: list[datetime] = []
    for at, wanted in asks:
        row = connection.execute(ASK.encode(), (wanted, at)).fetchone()
        found += [at] * (row[0] if row else 0)
    return found


def most(found: list[datetime], period: timedelta) -> int:
    return max((sum(start <= other < start + period for other in found) for start in found), default=0)


@given(throttle=throttles, moves=shares)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_period_sees_more_than_limit_and_burst(asked: Lane, throttle: Throttle, moves: list[tuple[float, int]]) -> None:
    step, _ = throttle_by(asked.connection, throttle)
    at, asks = BEGIN, list[tuple[datetime, int]]()
    for share, wanted in moves:
        at += step * share
        asks.append((at, wanted))
    assert most(starts(asked.connection, asks), throttle.period) <= throttle.limit + throttle.burst


@given(throttle=throttles, lateness=st.lists(st.floats(0, 1), min_size=12, max_size=12))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_starts_that_are_late_within_the_slack_cost_no_rate(asked: Lane, throttle: Throttle, lateness: list[float]) -> None:
    step, slack = throttle_by(asked.connection, throttle)
    # The first is in time: its clock begins with it.
    plan = [BEGIN + slack + step * max(0, place - throttle.burst) for place in range(len(lateness))]
    asks = [(at + slack * late, 1) for at, late in zip(plan, [0.0, *lateness[1:]], strict=True)]
    asked.connection.execute("UPDATE runlane.partition SET throttle_clock = %s", (plan[0],))
    assert len(starts(asked.connection, sorted(asks))) == len(plan)


def test_steps_are_rounded_up_to_microseconds(asked: Lane) -> None:
    for limit, period in ((3, "1s"), (7, "1h"), (1_000_000, "1s"), (2_147_483_647, "1ms")):
        step, slack = throttle_by(asked.connection, Throttle(limit, period))
        assert step * limit >= Throttle(limit, period).period + slack
        assert (step - MICROSECOND) * limit < Throttle(limit, period).period + slack


def test_the_slack_is_a_fortieth_and_at_most_a_quarter_of_a_second(asked: Lane) -> None:
    found = {period: throttle_by(asked.connection, Throttle(5, period))[1] for period in ("1s", "1m", "1h")}
    quarter = timedelta(milliseconds=250)
    assert found == {"1s": timedelta(milliseconds=25), "1m": quarter, "1h": quarter}
