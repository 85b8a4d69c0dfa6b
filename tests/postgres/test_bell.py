"""Who is told that a run was dispatched: listeners of a queue that somebody polls, once, where the connection carries it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from runlane.adapters.postgres.bell import PostgresBell
from runlane.adapters.postgres.connection import FixedSource
from runlane.domain.errors import UnavailableError
from runlane.domain.queue import Queue
from tests.postgres.factories import Lane, new_run, settlement

pytestmark = pytest.mark.postgres
notified = pytest.mark.direct(reason="a transaction pooler passes no notification on")


@pytest.fixture
def work(lane: Lane) -> Lane:
    lane.queues(Queue("work"), Queue("other"), Queue("single", concurrency_limit=1))
    return lane


@pytest.fixture
def bell(work: Lane, dsn: str) -> Iterator[PostgresBell]:
    opened = PostgresBell(FixedSource(dsn), "runlane", ["work", "single"])
    assert opened.open()
    yield opened
    opened.close()


def rings(bell: PostgresBell) -> bool:
    """Whether it has rung; a notification is there when its transaction has committed, so nothing is waited for but its way here."""
    return bell.wait(0.3)


@notified
def test_a_dispatch_rings_for_the_listeners_of_its_queue_only(work: Lane, bell: PostgresBell) -> None:
    work.trigger(new_run("other"))
    assert not rings(bell)
    work.trigger(new_run("work"))
    assert rings(bell)
    work.trigger(new_run("single"))
    assert rings(bell)


@notified
def test_it_rings_once_while_something_is_dispatched(work: Lane, bell: PostgresBell) -> None:
    run_ids = [work.trigger_one("work")]
    assert rings(bell)
    run_ids.append(work.trigger_one("work"))
    assert not rings(bell)
    assert len(work.claim(*run_ids).claims) == 2
    work.trigger_one("work")
    assert rings(bell)


@notified
def test_capacity_that_a_settled_run_frees_rings(work: Lane, bell: PostgresBell) -> None:
    first, _ = work.trigger_one("single"), work.trigger_one("single")
    assert rings(bell)
    (claim,) = work.claim(first).claims
    assert not rings(bell)
    work.storage.deliveries.settle_runs([settlement(claim)])
    assert rings(bell)


@notified
def test_recorded_runs_ring_when_they_are_dispatched(work: Lane, bell: PostgresBell) -> None:
    work.trigger(new_run("work"), eager=False)
    assert not rings(bell)
    work.storage.triggers.dispatch(["work"])
    assert rings(bell)


@pytest.mark.parametrize("since", [None, "1 second"])
def test_nobody_is_told_where_nobody_listens_or_has_for_a_while(work: Lane, dsn: str, since: str | None) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN runlane")
        work.connection.execute("UPDATE runlane.queue SET polled_until = clock_timestamp() - %s::interval", (since,))
        work.trigger(new_run("work"), new_run("single"))
        assert not list(listener.notifies(timeout=0.2))


@notified
def test_a_bell_whose_connection_was_cut_says_so_and_can_be_opened_again(work: Lane, bell: PostgresBell) -> None:
    listeners = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%keep_polled%' AND pid <> pg_backend_pid()"
    work.connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({listeners}) x".encode())
    with pytest.raises(UnavailableError):
        bell.wait(5)
    with pytest.raises(UnavailableError):
        bell.wait(5)
    assert bell.open()
    work.trigger(new_run("work"))
    assert rings(bell)


def test_behind_a_pooler_there_is_no_bell(work: Lane, dsn: str, route: tuple[int, bool]) -> None:
    bell = PostgresBell(FixedSource(dsn), "runlane", ["work"])
    assert bell.open() is not route[1]
    bell.close()


def test_a_look_tells_what_is_dispatched_recorded_and_due(work: Lane) -> None:
    look = work.storage.deliveries.look
    assert look(["work", "other"]) == look([])
    work.trigger(new_run("other"))
    work.trigger(new_run("work"), eager=False)
    work.trigger(new_run("work", delay=timedelta(minutes=2)))
    assert (look(["work"]).is_dispatched, look(["other"]).is_dispatched) == (False, True)
    assert (look(["work", "other"]).recorded, look(["other"]).recorded) == (("work",), ())
    due_in = look(["other"]).due_in
    assert due_in is not None
    assert timedelta(minutes=1) < due_in <= timedelta(minutes=2)
