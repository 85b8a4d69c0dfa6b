"""What befalls a process behind a transaction pooler: a pooler that dies, or is full, a server that is full, a client that stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.postgres import connection as sessions
from runlane.adapters.postgres.migrate import grant, migrate
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import UnavailableError
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.runtime import Runlane
from runlane.services.lane import Lane as ProductLane
from tests.pooler import NEEDS_PGBOUNCER, Pooler
from tests.postgres.factories import LEASE, Lane, new_run, settlement
from tests.waiting import until

pytestmark = [
    pytest.mark.postgres,
    NEEDS_PGBOUNCER,
    # Each with a pooler of its own, before one server.
    pytest.mark.parametrize("route", [pytest.param((18, False), id="pooled")], indirect=True),
]
ROOT = Path(__file__).parents[2]
OpenPooler = Callable[..., Pooler]


@pytest.fixture
def open_pooler(server: LocalPostgres) -> Iterator[OpenPooler]:
    """`(**settings of pgbouncer)`: one before the server."""
    with ExitStack() as opened:
        yield lambda **settings: opened.enter_context(Pooler(server.socket_dsn, settings))


@pytest.fixture
def work(lane: Lane) -> Lane:
    lane.queues(Queue("work", concurrency_limit=1))
    return lane


def is_served(storage: PostgresStorage) -> None:
    """A run is triggered, claimed and settled."""
    (recorded,) = storage.triggers.trigger_runs([new_run("work")], eager=True).runs
    (claim,) = storage.deliveries.claim_runs([recorded.run_id], lease_for=LEASE, worker="w").claims
    assert storage.deliveries.settle_runs([settlement(claim)]).settled


def serves(storage: PostgresStorage) -> bool:
    try:
        is_served(storage)
    except UnavailableError:
        return False
    return True


@contextmanager
def holding(dsn: str) -> Iterator[psycopg.Connection]:
    """A server connection of the pooler, for as long as a transaction is open."""
    with psycopg.connect(dsn, prepare_threshold=None) as holder:
        holder.execute("SELECT 1")
        yield holder


# Dead sockets


def test_a_pooler_that_died_between_two_invocations_is_not_noticed(
    work: Lane, dsn: str, open_pooler: OpenPooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooler = open_pooler()
    with closing(PostgresStorage(pooler.way(dsn))) as storage:
        is_served(storage)
        pooler.kill()
        pooler.start()
        # As after any pause between two invocations.
        monkeypatch.setattr(sessions, "_IDLE_CHECK_AFTER", 0.0)
        is_served(storage)


def test_one_that_dies_in_use_is_an_error_once(work: Lane, dsn: str, open_pooler: OpenPooler) -> None:
    pooler = open_pooler()
    with closing(PostgresStorage(pooler.way(dsn))) as storage:
        is_served(storage)
        pooler.kill()
        for _ in range(2):
            with pytest.raises(UnavailableError):
                is_served(storage)
        pooler.start()
        is_served(storage)


def test_a_client_that_the_pooler_hung_up_on_comes_back(
    work: Lane, dsn: str, open_pooler: OpenPooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_IDLE_CHECK_AFTER", 0.0)
    with closing(PostgresStorage(open_pooler(client_idle_timeout=1).way(dsn))) as storage:
        is_served(storage)
        connection = storage._work._connection
        assert connection is not None
        until(lambda: sessions._is_dead(connection))
        is_served(storage)


def test_a_server_that_restarted_behind_the_pooler_costs_an_error_at_most(route: tuple[int, bool]) -> None:
    with LocalPostgres(major=route[0], durable=False) as mortal, Pooler(mortal.socket_dsn) as pooler:
        with psycopg.connect(mortal.socket_dsn, autocommit=True) as connection:
            migrate(connection, schema="runlane", environment="test")
        with closing(PostgresStorage(pooler.way(mortal.socket_dsn))) as storage:
            storage.queues.write_policies([Queue("work")], actor=None)
            is_served(storage)
            mortal.restart()
            try:
                is_served(storage)
            except UnavailableError:
                is_served(storage)


# Transactions that nobody ends


CALLER = textwrap.dedent("""
    import os, signal, sys, psycopg
    from runlane.adapters.postgres.storage import PostgresStorage
    from tests.postgres.factories import new_run

    storage = PostgresStorage(sys.argv[1])
    with psycopg.connect(sys.argv[1], prepare_threshold=None) as caller:
        caller.execute("SELECT FROM runlane.queue WHERE name = 'work' FOR UPDATE")
        storage.triggers.record_runs(caller, [new_run("work")])
        print("holds", flush=True)
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
        try:
            caller.execute("SELECT 1")
        except psycopg.OperationalError as error:
            print("refused", flush=True)
""")


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_transaction_whose_caller_is_killed_or_stopped_lets_go_of_its_locks(
    work: Lane, dsn: str, open_pooler: OpenPooler, how: str
) -> None:
    """A killed process hangs up, and the pooler rolls back; one that stands still, like a frozen sandbox, is given a time."""
    pooled = open_pooler(idle_transaction_timeout=1).way(dsn)
    caller = subprocess.Popen([sys.executable, "-c", CALLER, pooled, how], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "holds\n"
        with closing(PostgresStorage(pooled)) as storage:
            # Waits for the row that the other holds.
            storage.queues.write_policies([Queue("work", concurrency_limit=2)], actor=None)
            is_served(storage)
        if how == "SIGSTOP":
            os.kill(caller.pid, signal.SIGCONT)
            assert caller.stdout.readline() == "refused\n"
    finally:
        caller.kill()
        caller.communicate()
    assert work.value("SELECT count(*) FROM runlane.run") == 1, "its run was never there"
    idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND starts_with(state, 'idle in transaction')"
    assert work.value(idle) == 0


# Nothing left


def test_a_full_pool_is_waited_for(work: Lane, dsn: str, open_pooler: OpenPooler) -> None:
    pooled = open_pooler(default_pool_size=1).way(dsn)
    with closing(PostgresStorage(pooled)) as storage, ThreadPoolExecutor(1) as pool:
        with holding(pooled):
            served = pool.submit(is_served, storage)
            with pytest.raises(TimeoutError):
                served.result(0.3)
        served.result(10)


def test_one_that_stays_full_is_an_error_and_works_again_when_there_is_room(work: Lane, dsn: str, open_pooler: OpenPooler) -> None:
    pooled = open_pooler(default_pool_size=1, query_wait_timeout=1).way(dsn)
    with closing(PostgresStorage(pooled)) as storage:
        with holding(pooled), pytest.raises(UnavailableError):
            is_served(storage)
        is_served(storage)


def test_so_is_a_pooler_with_all_the_clients_it_takes(work: Lane, dsn: str, open_pooler: OpenPooler) -> None:
    pooled = open_pooler(max_client_conn=2).way(dsn)
    with closing(PostgresStorage(pooled)) as storage:
        with holding(pooled), holding(pooled), pytest.raises(UnavailableError):
            is_served(storage)
        is_served(storage)


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "through a pooler"])
def test_so_is_a_server_with_all_the_connections_it_takes(route: tuple[int, bool], pooled: bool) -> None:
    few = {"max_connections": "5", "superuser_reserved_connections": "1"}
    with LocalPostgres(major=route[0], durable=False, settings=few) as small, ExitStack() as opened:
        with psycopg.connect(small.socket_dsn, autocommit=True) as connection:
            migrate(connection, schema="runlane", environment="test")
            connection.execute("CREATE ROLE runtime LOGIN")
            grant(connection, schema="runlane", role="runtime")
        dsn = make_conninfo(small.socket_dsn, user="runtime")
        if pooled:
            dsn = opened.enter_context(Pooler(small.socket_dsn, {"query_wait_timeout": 1, "server_login_retry": 1})).way(dsn)
        storage = opened.enter_context(closing(PostgresStorage(dsn)))
        storage.queues.write_policies([Queue("work")], actor=None)
        storage.close()
        if pooled:
            small.restart()
        with ExitStack() as others:
            for _ in range(4):
                others.enter_context(psycopg.connect(small.socket_dsn))
            with pytest.raises(UnavailableError):
                is_served(storage)
        # A pooler tries again after a second.
        until(lambda: serves(storage))


# What needs a session falls back by itself


def test_a_polling_worker_finds_what_is_dispatched_without_a_bell(work: Lane, dsn: str, open_pooler: OpenPooler) -> None:
    """LISTEN would be heard by nobody; the worker looks in pauses."""
    queue = Queue("work", concurrency_limit=1)

    @task("noop", queue=queue)
    def noop(number: int) -> int:
        return number

    with closing(PostgresStorage(open_pooler().way(dsn))) as storage:
        runlane = Runlane(lane=ProductLane(storage, None), queues=[queue], tasks=[noop], environment="test")
        worker = runlane.worker(mode="poll", queues=["work"], concurrency=2)
        run_id = runlane.trigger(noop, 1).run.run_id
        until(lambda: runlane.runs.get(run_id).status is Status.SUCCEEDED)
        worker.stop()
        worker.wait()
