"""A frozen sandbox wakes with a dead socket, a server restarts, a process forks: the next invocation does not notice."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from runlane.adapters.postgres import connection as sessions
from runlane.domain.errors import UnavailableError
from runlane.domain.run import Status
from runlane.domain.task import task
from runlane.services.maintenance import PHASES
from tests.functions.conftest import OpenWorld
from tests.functions.world import World
from tests.postgres.databases import ONLOOKER, Databases

HANG_UP = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name <> %s
"""
BOTH = pytest.mark.parametrize("major", [18, 15])
ROOT = Path(__file__).parents[2]


@task("noop")
def noop(number: int) -> int:
    return number


@pytest.fixture
def _every_pause_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_IDLE_CHECK_AFTER", 0.0)


@pytest.fixture(autouse=True)
def _no_test_inherits_a_dead_connection(dsn: str, databases: Databases) -> Iterator[None]:
    """Within a second of its last use nobody asks whether it lives."""
    databases.cool(dsn)
    yield
    databases.cool(dsn)


def hang_up(world: World) -> None:
    """End every session but the observers', and wait until they are gone."""
    world.lane.connection.execute(HANG_UP.encode(), (ONLOOKER,))


@BOTH
@pytest.mark.usefixtures("_every_pause_is_long")
def test_a_connection_that_died_between_two_invocations_is_replaced_silently(open_world: OpenWorld) -> None:
    world = open_world([noop])
    for _ in range(3):
        run_id = world.runlane.trigger(noop, 1).run.run_id
        hang_up(world)
        assert world.deliver(*world.wire.take()) == {"batchItemFailures": []}
        assert world.runlane.runs.get(run_id).status is Status.SUCCEEDED
        hang_up(world)
        assert world.tick()["failed"] == []
        hang_up(world)


def test_one_that_dies_unnoticed_fails_its_message_once_and_the_next_try_works(
    open_world: OpenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = open_world([noop])
    run_id = world.runlane.trigger(noop, 1).run.run_id
    (wakeup,) = world.wire.take()
    hang_up(world)
    with monkeypatch.context() as unnoticed:
        unnoticed.setattr(sessions, "_IDLE_CHECK_AFTER", math.inf)
        assert len(world.deliver(wakeup)["batchItemFailures"]) == 1
    assert world.deliver(wakeup) == {"batchItemFailures": []}
    assert world.lane.status(run_id) is Status.SUCCEEDED


def test_one_that_dies_while_handlers_run_costs_no_result(open_world: OpenWorld) -> None:
    worlds: list[World] = []

    @task("cut")
    def cut(number: int) -> str:
        hang_up(worlds[0])
        return "kept"

    worlds.append(open_world([cut]))
    run_id = worlds[0].runlane.trigger(cut, 1).run.run_id
    assert worlds[0].deliver(*worlds[0].wire.take()) == {"batchItemFailures": []}
    assert (worlds[0].get(run_id).status, worlds[0].get(run_id).attempt) == (Status.SUCCEEDED, 1)


@pytest.fixture
def _many_open_files() -> Iterator[None]:
    """More than `select` can count."""
    with ExitStack() as files:
        for _ in range(1100):
            files.enter_context(Path(os.devnull).open())
        yield


@pytest.mark.usefixtures("_many_open_files", "_every_pause_is_long")
def test_a_process_with_many_open_files_is_served_too(open_world: OpenWorld) -> None:
    world = open_world([noop])
    # So that its connections come after all the files.
    hang_up(world)
    runs = [world.runlane.trigger(noop, number).run.run_id for number in range(2)]
    world.deliver_sent()
    assert world.statuses(runs) == {Status.SUCCEEDED}


def test_a_forked_process_opens_its_own(open_world: OpenWorld, dsn: str) -> None:
    """As a web server does that loads the application before it forks its workers."""
    open_world([noop])
    program = textwrap.dedent("""
        import os, sys
        from runlane.adapters.postgres.storage import PostgresStorage
        from tests.postgres.factories import new_run

        storage = PostgresStorage(sys.argv[1])
        trigger = lambda: [storage.triggers.trigger_runs([new_run("main")], eager=True) for _ in range(20)]
        trigger()
        children = []
        for _ in range(2):
            child = os.fork()
            if not child:
                trigger()
                os._exit(0)
            children.append(child)
        trigger()
        sys.exit(any(os.waitpid(child, 0)[1] for child in children))
    """)
    done = subprocess.run([sys.executable, "-c", program, dsn], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM runlane.run").fetchone() == (80,)


def test_a_database_out_of_reach_is_an_error_of_the_trigger_and_a_failed_message_of_a_delivery(
    open_world: OpenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = open_world([noop])
    run_id = world.runlane.trigger(noop, 1).run.run_id
    with monkeypatch.context() as broken:
        broken.setattr(sessions, "connect", _refused)
        broken.setattr(sessions, "_IDLE_CHECK_AFTER", 0.0)
        hang_up(world)
        with pytest.raises(UnavailableError):
            world.runlane.trigger(noop, 2)
        assert len(world.deliver(run_id)["batchItemFailures"]) == 1
        assert world.tick()["failed"] == [*(phase.name for phase in PHASES), "note_tick"]
    assert world.deliver(run_id) == {"batchItemFailures": []}
    assert world.lane.status(run_id) is Status.SUCCEEDED


def _refused(conninfo: str) -> psycopg.Connection:
    raise psycopg.OperationalError("connection refused")
