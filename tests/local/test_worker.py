from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from runlane.adapters.local.faults import LocalLaneError
from runlane.adapters.local.sqs import LocalQueue, LocalSqs
from runlane.adapters.local.worker import Printable, load, spawn_worker
from tests.waiting import has_ended, until

pytestmark = pytest.mark.sqs

Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def queue(sqs: LocalSqs) -> LocalQueue:
    """Patient: ministack still hands a message to the long poll of a worker that was just killed, which counts as a receive."""
    return sqs.create_queue(f"work-{uuid4().hex}", visibility_timeout=timedelta(seconds=1), max_receive_count=20)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


@pytest.fixture
def spawn(sqs: LocalSqs, queue: LocalQueue, notes: Path) -> Iterator[Spawn]:
    workers: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = ["--app", "tests.local.handlers:record", "--queue-url", queue.url, *arguments]
        workers.append(spawn_worker(command, {**sqs.variables, "NOTES": str(notes)}))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()
        worker.wait()


def test_sigterm_ends_a_worker_when_its_invocation_has_ended(sqs: LocalSqs, queue: LocalQueue, notes: Path, spawn: Spawn) -> None:
    worker = spawn("--maintenance", "tests.local.handlers:tick", "--tick-every", "0.1")
    sqs.client.send_message(QueueUrl=queue.url, MessageBody="sleep")
    until(lambda: {"start sleep 1", "tick"} <= set(notes.read_text().splitlines()))
    worker.terminate()
    assert worker.wait(60) == 0
    assert "end sleep 1" in notes.read_text()


def test_what_a_killed_worker_held_is_delivered_again(sqs: LocalSqs, queue: LocalQueue, notes: Path, spawn: Spawn) -> None:
    first = spawn()
    sqs.client.send_message(QueueUrl=queue.url, MessageBody="sleep")
    until(lambda: "start sleep 1" in notes.read_text())
    first.kill()
    spawn()
    until(lambda: "end sleep" in notes.read_text())
    assert "end sleep 1" not in notes.read_text()


def test_a_worker_ends_with_the_process_that_spawned_it(sqs: LocalSqs, queue: LocalQueue) -> None:
    program = textwrap.dedent("""
        import sys, time
        from runlane.adapters.local.worker import spawn_worker
        worker = spawn_worker(sys.argv[1:], {})
        sys.stdout.write(f"{worker.pid}\\n")
        sys.stdout.flush()
        time.sleep(60)
    """)
    variables = [f"{name}={value}" for name, value in {**sqs.variables, "NOTES": "unused"}.items()]
    arguments = ["--app", "tests.local.handlers:record", "--queue-url", queue.url]
    with subprocess.Popen(["env", *variables, sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    until(lambda: has_ended(pid))


def test_a_path_that_names_no_handler_is_refused() -> None:
    with pytest.raises(LocalLaneError, match="module:attribute"):
        load("tests.local.handlers:missing")


def test_nothing_a_terminal_obeys_is_logged() -> None:
    try:
        raise ValueError("\x9b2J\u202e\x7f\x1b[2J\ud800é")
    except ValueError:
        record = logging.LogRecord("odd", logging.ERROR, "", 0, "%s failed\r", ("é",), sys.exc_info())
    lines = Printable("%(message)s").format(record).splitlines()
    assert all(line.isprintable() for line in lines)
    assert lines[1].startswith("Traceback")
    assert r"\x9b2J\u202e\x7f" in lines[-1]
