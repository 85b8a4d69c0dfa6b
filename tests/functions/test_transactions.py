"""Runs in the caller's transaction: they exist if and only if it commits, and are sent on their way after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from runlane.domain.errors import ConflictError, ContractError
from runlane.domain.queue import Queue
from runlane.domain.run import Status, TriggerOutcome
from runlane.domain.task import task
from tests.functions.conftest import OpenWorld
from tests.functions.world import World

BOTH = pytest.mark.parametrize("major", [18, 15])


@task("noop")
def noop(number: int) -> int:
    return number


@pytest.fixture
def caller(dsn: str, connection: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """The application's own connection and table."""
    connection.execute("CREATE SCHEMA caller CREATE TABLE orders (number int)")
    with psycopg.connect(dsn) as opened:
        yield opened


def order(caller: psycopg.Connection) -> None:
    caller.execute("INSERT INTO caller.orders VALUES (1)")


def orders(world: World) -> int:
    return int(world.value("SELECT count(*) FROM caller.orders"))


@BOTH
def test_a_commit_brings_both_and_dispatches(open_world: OpenWorld, caller: psycopg.Connection) -> None:
    world = open_world([noop])
    with world.runlane.transaction(caller) as tx:
        order(caller)
        first = tx.trigger(noop, 1).run.run_id
        more = [result.run.run_id for result in tx.trigger_many(noop, [2, 3])]
        assert (world.count("run"), list(world.wire.sent)) == (0, []), "nobody else sees it yet"
    assert {wakeup.run_id for wakeup in world.wire.sent} == {first, *more}
    world.deliver_sent()
    assert world.statuses([first, *more]) == {Status.SUCCEEDED}
    assert orders(world) == 1


@BOTH
def test_a_rollback_leaves_neither(open_world: OpenWorld, caller: psycopg.Connection) -> None:
    world = open_world([noop])

    def fail() -> None:
        with world.runlane.transaction(caller) as tx:
            order(caller)
            tx.trigger(noop, 1, idempotency_key="k", singleton_key="s", concurrency_key="c", tenant="t")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert (world.count("run"), world.count("inbox"), world.count("event"), orders(world)) == (0, 0, 0, 0)
    assert list(world.wire.sent) == []
    assert world.runlane.trigger(noop, 1, idempotency_key="k", singleton_key="s").outcome is TriggerOutcome.CREATED


def test_a_failed_statement_of_the_caller_leaves_nothing(open_world: OpenWorld, caller: psycopg.Connection) -> None:
    world = open_world([noop])

    def fail() -> None:
        with world.runlane.transaction(caller) as tx:
            tx.trigger(noop, 1)
            caller.execute("SELECT 1/0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        fail()
    assert world.count("run") == 0
    order(caller)
    caller.commit()


def test_a_caller_that_dies_leaves_nothing(dsn: str, open_world: OpenWorld) -> None:
    world = open_world([noop])
    caller = psycopg.connect(dsn)
    world.runlane.trigger(noop, 1, connection=caller)
    caller.close()
    assert (world.count("run"), world.count("inbox")) == (0, 0)


@pytest.mark.parametrize("queue", [Queue("main", default=True), Queue("main", default=True, concurrency_limit=1)], ids=["open", "limited"])
def test_a_bare_connection_only_records_until_dispatched(open_world: OpenWorld, caller: psycopg.Connection, queue: Queue) -> None:
    world = open_world([noop], [queue])
    result = world.runlane.trigger(noop, 1, connection=caller)
    assert world.runlane.dispatch(result) == 0, "it is not committed"
    caller.commit()
    assert (world.count("inbox"), world.count("dispatch")) == (1, 0)
    assert world.runlane.dispatch(result) == 1
    assert world.runlane.dispatch(result) == 0
    world.deliver_sent()
    assert world.get(result.run.run_id).status is Status.SUCCEEDED


@pytest.mark.parametrize("queue", [Queue("main", default=True), Queue("main", default=True, concurrency_limit=1)], ids=["open", "limited"])
def test_what_nobody_dispatches_goes_with_the_next_settle_of_the_queue(
    open_world: OpenWorld, caller: psycopg.Connection, queue: Queue
) -> None:
    world = open_world([noop], [queue])
    recorded = world.runlane.trigger(noop, 1, connection=caller).run.run_id
    caller.commit()
    world.runlane.trigger(noop, 2)
    world.deliver_sent()
    assert world.get(recorded).status is Status.SUCCEEDED


def test_or_with_the_tick_or_by_a_wakeup(open_world: OpenWorld, caller: psycopg.Connection) -> None:
    world = open_world([noop])
    ticked, woken = (world.runlane.trigger(noop, number, connection=caller).run.run_id for number in range(2))
    caller.commit()
    world.deliver(woken)
    assert world.get(woken).status is Status.SUCCEEDED
    world.tick()
    world.deliver_sent()
    assert world.get(ticked).status is Status.SUCCEEDED


def test_deferred_reserves_nothing_until_dispatched(open_world: OpenWorld) -> None:
    world = open_world([noop])
    result = world.runlane.trigger(noop, 1, dispatch="deferred")
    assert (world.count("dispatch"), list(world.wire.sent)) == (0, [])
    assert world.runlane.dispatch(result) == 1


def test_a_connection_in_autocommit_is_refused(open_world: OpenWorld, connection: psycopg.Connection) -> None:
    world = open_world([noop])
    with pytest.raises(ContractError, match="autocommit"):
        world.runlane.trigger(noop, 1, connection=connection)
    with pytest.raises(ContractError, match="autocommit"), world.runlane.transaction(connection):
        pytest.fail("must not be entered")
    assert world.count("run") == 0


def test_an_asynchronous_connection_is_refused(open_world: OpenWorld) -> None:
    world = open_world([noop])
    connection: Any = psycopg.AsyncConnection.__new__(psycopg.AsyncConnection)
    with pytest.raises(ContractError, match="is asynchronous"):
        world.runlane.trigger(noop, 1, connection=connection)


def test_a_joined_trigger_locks_nothing_that_others_need(open_world: OpenWorld, caller: psycopg.Connection) -> None:
    """While the caller's transaction is open, the queue goes on."""
    world = open_world([noop], [Queue("main", default=True, concurrency_limit=1, total_limit=1)])
    held = world.runlane.trigger(noop, 1, connection=caller, concurrency_key="k").run.run_id
    other = world.runlane.trigger(noop, 2, concurrency_key="k").run.run_id
    world.deliver_sent()
    world.tick()
    assert world.get(other).status is Status.SUCCEEDED
    caller.commit()
    world.tick()
    world.deliver_sent()
    assert world.get(held).status is Status.SUCCEEDED


def test_duplicates_inside_a_transaction_get_the_owner(open_world: OpenWorld, caller: psycopg.Connection) -> None:
    world = open_world([noop])
    with world.runlane.transaction(caller) as tx:
        owner, again, other = (tx.trigger(noop, number, idempotency_key="k") for number in (1, 1, 2))
    assert [one.outcome for one in (owner, again, other)] == [TriggerOutcome.CREATED, TriggerOutcome.DUPLICATE, TriggerOutcome.DUPLICATE]
    assert {one.run.run_id for one in (owner, again, other)} == {owner.run.run_id}
    assert [one.payload_matches for one in (again, other)] == [True, False]


@BOTH
def test_the_sql_function_records_in_the_callers_transaction(open_world: OpenWorld, caller: psycopg.Connection) -> None:
    world = open_world([noop])
    ask = "SELECT runlane.trigger('noop', '7', 'main', '{\"tenant\": \"t\", \"idempotency_key\": \"k\"}')::text"
    caller.execute(ask)
    caller.rollback()
    assert world.count("run") == 0
    row = caller.execute(ask.encode()).fetchone()
    assert row is not None
    assert caller.execute(ask.encode()).fetchone() == row, "the key's owner"
    caller.commit()
    world.tick()
    world.deliver_sent()
    record = world.get(row[0])
    assert (record.status, record.result, record.tenant) == (Status.SUCCEEDED, 7, "t")


def test_a_transaction_that_already_failed_is_not_taken_for_committed(open_world: OpenWorld, caller: psycopg.Connection) -> None:
    """Postgres answers the COMMIT of a failed transaction with a rollback, and no error."""
    world = open_world([noop])

    def swallow() -> None:
        with world.runlane.transaction(caller) as tx:
            tx.trigger(noop, 1)
            with suppress(psycopg.errors.DivisionByZero):
                caller.execute("SELECT 1/0")

    with pytest.raises(ConflictError) as refused:
        swallow()
    assert refused.value.code == "transaction_failed"
    assert (world.count("run"), list(world.wire.sent)) == (0, [])


def test_the_caller_s_own_error_survives_a_connection_that_died(open_world: OpenWorld, caller: psycopg.Connection) -> None:
    world = open_world([noop])

    def fail() -> None:
        with world.runlane.transaction(caller) as tx:
            tx.trigger(noop, 1)
            caller.close()
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert world.count("run") == 0
