"""The demo in small, and that it does not lie: a broken promise is a failed command."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from runlane.cli.demo.plan import plan
from tests.acceptance.command import runlane, variables
from tests.waiting import has_ended, until

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.sqs]

COUNTS = ["triggered", "succeeded", "failed", "cancelled", "retried", "recovered", "released", "limit", "highest"]
SERVERS_AND_WORKERS = 4
QUEUE = ["queue", *COUNTS, "noisy_p50", "noisy_p99", "quiet_p50", "quiet_p99"]


def test_the_demo_keeps_every_promise(project: Path) -> None:
    done = runlane("demo", "--runs", "300", "--json", folder=project, timeout=100)
    assert done.code == 0, done.err + done.out
    found = done.document
    assert list(found) == ["queues", "checks", "play_seconds", "seconds"]
    assert all(list(queue) == QUEUE for queue in found["queues"])
    assert sum(queue["triggered"] for queue in found["queues"]) == 300
    assert sum(queue["recovered"] for queue in found["queues"]) > 0
    assert sum(queue["cancelled"] for queue in found["queues"]) == 2
    assert sum(queue["retried"] for queue in found["queues"]) > 0
    assert sum(queue["released"] for queue in found["queues"]) > 0
    assert all(queue["highest"] <= queue["limit"] for queue in found["queues"] if queue["limit"])
    assert all(check["holds"] for check in found["checks"])
    assert "SIGKILL" in done.err


@pytest.mark.thorough
def test_a_broken_promise_fails_the_demo(project: Path) -> None:
    program = textwrap.dedent("""
        import os, sys
        import psycopg
        from runlane.cli import run
        from runlane.cli.demo import play

        summaries = play.summaries

        def tamper(audit):
            with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
                connection.execute("UPDATE runlane.event SET occupied = 2 WHERE occupied = 1 AND type = 'run.dispatched'")
                connection.execute("DELETE FROM runlane.outcome WHERE status = 'cancelled'")
            return summaries(audit)

        play.summaries = tamper
        sys.exit(run(["demo", "--runs", "150"]))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project, env=variables(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1, done.stderr + done.stdout
    broken = [line for line in done.stdout.splitlines() if "✗" in line]
    assert any("more slots than its concurrency_limit" in line for line in broken)
    assert any("none is lost" in line for line in broken)
    assert "promises broken" in done.stdout


def test_a_demo_that_is_ended_takes_its_processes_along(project: Path) -> None:
    program = [sys.executable, "-m", "runlane.cli", "demo"]
    with subprocess.Popen(program, cwd=project, env=variables(), stdout=subprocess.DEVNULL) as demo:
        until(lambda: len(children(demo.pid)) >= SERVERS_AND_WORKERS)
        others = children(demo.pid)
        demo.terminate()
    until(lambda: all(has_ended(pid) for pid in others))


@pytest.mark.parametrize("runs", [100, 2000, 2003])
def test_a_plan_has_as_many_runs_as_were_asked_for(runs: int) -> None:
    made = plan(runs)
    items = sum(len(wave.items) for wave in made.waves)
    assert items - made.duplicates == made.runs == runs


def children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children() if not has_ended(child.pid)]
