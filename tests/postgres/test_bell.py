"""Who is told that a run was dispatched: listeners of a queue that somebody polls, once, where the connection carries it."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runlane.adapters.postgres.bell import PostgresBell
from runlane.adapters.postgres.connection import FixedSource
from runlane.domain.errors import UnavailableError
from runlane.domain.queue import Queue
from tests.postgres.factories import Lane, new_run, settlement

pytestmark = pytest.mark.postgres
KEY = re.compile(rb"K\x00\x00\x00\x0c(....)", re.DOTALL)
"""How a server of protocol 3.0 tells a client its process number."""


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


def test_a_dispatch_rings_for_the_listeners_of_its_queue_only(work: Lane, bell: PostgresBell) -> None:
    work.trigger(new_run("other"))
    assert not rings(bell)
    work.trigger(new_run("work"))
    assert rings(bell)
    work.trigger(new_run("single"))
    assert rings(bell)


def test_it_rings_once_while_something_is_dispatched(work: Lane, bell: PostgresBell) -> None:
    run_ids = [work.trigger_one("work")]
    assert rings(bell)
    run_ids.append(work.trigger_one("work"))
    assert not rings(bell)
    assert len(work.claim(*run_ids).claims) == 2
    work.trigger_one("work")
    assert rings(bell)


def test_capacity_that_a_settled_run_frees_rings(work: Lane, bell: PostgresBell) -> None:
    first, _ = work.trigger_one("single"), work.trigger_one("single")
    assert rings(bell)
    (claim,) = work.claim(first).claims
    assert not rings(bell)
    work.storage.deliveries.settle_runs([settlement(claim)])
    assert rings(bell)


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


def test_behind_a_pooler_there_is_no_bell(work: Lane, dsn: str) -> None:
    with pooled(dsn) as through:
        bell = PostgresBell(FixedSource(through), "runlane", ["work"])
        assert not bell.open()


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


class pooled:
    """A way to the server on which, as behind a pooler, the process number told to the client is not the server's."""

    def __init__(self, dsn: str) -> None:
        self._target = conninfo_to_dict(dsn)
        self._dsn = dsn
        self._ends: list[socket.socket] = [socket.create_server(("127.0.0.1", 0))]

    def __enter__(self) -> str:
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()
        return make_conninfo(self._dsn, host="127.0.0.1", port=self._ends[0].getsockname()[1])

    def __exit__(self, *error: object) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for end in self._ends:
            end.close()

    def _serve(self) -> None:
        client = self._ends[0].accept()[0]
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._target['host']}/.s.PGSQL.{self._target['port']}")
        self._ends += [client, server]
        self._threads.append(threading.Thread(target=_pump, args=(client, server), daemon=True))
        self._threads[-1].start()
        _pump(server, client)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(KEY.sub(b"K\x00\x00\x00\x0c\x00\x00\x00\x07", data))
        sink.shutdown(socket.SHUT_RDWR)
