"""The command line against a development session: found without configuration, documents with fixed fields, errors without tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.acceptance.command import runlane, variables
from tests.acceptance.conftest import Run

SUMMARY = ["run_id", "task", "queue", "status", "tenant", "concurrency_key", "attempt", "failures", "created_at", "due_at", "ended_at"]
RECORD = [
    *SUMMARY,
    "payload",
    "result",
    "failure",
    "priority",
    "idempotency_key",
    "singleton_key",
    "max_attempts",
    "start_timeout",
    "finish_timeout",
    "actor",
    "trace",
    "meta",
    "lease_expires_at",
    "cancellation_requested_at",
    "attempts",
]
EVENT = ["run_id", "sequence", "type", "at", "actor", "attempt", "slot_seq", "occupied", "queue_slot_seq", "queue_occupied", "data"]
STATS = ["queue", "waiting", "scheduled", "due", "dispatched", "running", "oldest_due_for", "partitions", "blocked", "paused"]
NOBODY = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "RUNLANE_QUEUE_URL": "http://127.0.0.1:1/0/none"}


def test_a_run_is_triggered_awaited_and_remembered(run: Run) -> None:
    done = run("trigger", "invoices.sync", '{"customer": "acme"}', "--wait", "60s", "--json")
    assert (done.code, done.err) == (0, "")
    assert list(done.document) == RECORD
    assert (done.document["status"], done.document["result"]["invoices"], done.document["concurrency_key"]) == ("succeeded", 60, "acme")
    assert run("runs", "show", done.document["run_id"], "--json").document == done.document
    history = run("runs", "events", done.document["run_id"], "--json").document["data"]
    assert all(list(event) == EVENT for event in history)
    assert [event["type"] for event in history][:3] == ["run.created", "run.dispatched", "run.claimed"]
    assert history[-1]["type"] == "run.succeeded"
    shown = run("runs", "show", done.document["run_id"]).out
    assert "succeeded" in shown
    assert '{"customer": "acme"}' in shown


def test_an_idempotency_key_triggers_once(run: Run) -> None:
    receipt = json.dumps({"invoice_id": "acme-1", "address": "a@example.com"})
    first, again = (run("trigger", "receipts.send", receipt, "--json").document for _ in range(2))
    assert list(first) == ["run_id", "outcome", "task", "queue", "status", "due_at", "payload_matches"]
    assert (first["outcome"], again["outcome"], again["payload_matches"]) == ("created", "duplicate", True)
    assert again["run_id"] == first["run_id"]


def test_a_wait_that_is_no_duration_triggers_nothing(run: Run) -> None:
    receipt = json.dumps({"invoice_id": "acme-2", "address": "a@example.com"})
    assert run("trigger", "receipts.send", receipt, "--wait", "soon").code == 2
    assert run("trigger", "receipts.send", receipt, "--json").document["outcome"] == "created"


def test_an_export_that_is_not_ready_is_released_and_comes_back(run: Run) -> None:
    export = json.dumps({"export_id": f"export-{time.time() + 2:.3f}"})
    done = run("trigger", "exports.fetch", "-", "--wait", "60s", "--json", stdin=export).document
    assert done["status"] == "succeeded"
    assert "run.released" in [attempt["outcome"] for attempt in done["attempts"]]


def test_a_failed_run_fails_the_command_that_waits_for_it(run: Run, project: Path) -> None:
    (project / "payload.json").write_text(json.dumps({"export_id": "\x1b[31mred\x00".replace("\x00", "")}))
    done = run("trigger", "exports.fetch", "@payload.json", "--wait", "60s")
    assert done.code == 1
    assert "NonRetryable" in done.out
    assert "\x1b" not in done.out


def test_a_pause_holds_runs_back_until_resumed(run: Run) -> None:
    assert list(run("queues", "pause", "main", "--json").document) == ["queue", "tenant", "concurrency_key", "given_back"]
    waiting = run("trigger", "receipts.send", '{"invoice_id": "held", "address": "a"}', "--json").document["run_id"]
    stats = {queue["queue"]: queue for queue in run("queues", "stats", "--json").document["data"]}
    assert list(stats["main"]) == STATS
    assert (stats["main"]["paused"], stats["main"]["due"]) == (True, 1)
    assert run("runs", "cancel", waiting, "--reason", "a test", "--json").document == {"run_id": waiting, "status": "cancelled"}
    assert run("queues", "resume", "main").out == "resumed: no run waited that could start\n"
    assert "paused" not in run("queues", "stats", "main").out


def test_lists_filter_and_page(run: Run) -> None:
    for number in range(3):
        run("trigger", "receipts.send", json.dumps({"invoice_id": f"page-{number}", "address": "a"}), "--tenant", "pages")
    first = run("runs", "list", "--tenant", "pages", "--limit", "2", "--json").document
    assert all(list(summary) == SUMMARY for summary in first["data"])
    rest = run("runs", "list", "--tenant", "pages", "--limit", "2", "--cursor", first["next_cursor"], "--json").document
    assert [len(first["data"]), len(rest["data"]), rest["next_cursor"]] == [2, 1, None]
    assert run("--json", "runs", "list", "--status", "failed", "--task", "nothing").document == {"data": [], "next_cursor": None}


def test_tick_and_migrate_have_nothing_left_to_do(run: Run) -> None:
    tick = run("tick", "--json").document
    assert (tick["failed"], "recover_leases" in tick["counts"]) == ([], True)
    assert run("migrate", "--json").document == {"applied": []}
    assert "nothing to do" in run("migrate").out


def test_a_second_session_in_the_folder_is_refused(run: Run) -> None:
    refused = run("dev")
    assert refused.code == 1
    assert "already runs" in refused.err


@pytest.mark.parametrize(
    ("code", "arguments", "says"),
    [
        (2, ["trigger", "invoices.sync", "{"], "is not JSON"),
        (2, ["trigger", "invoices.sync", "[" * 100_000], "too deeply"),
        (2, ["trigger", "invoices.sync", "@nowhere.json"], "cannot be read"),
        (2, ["trigger", "nothing"], "there are: invoices.sync"),
        (2, ["trigger", "invoices.sync", '{"customer": 1}'], "customer"),
        (2, ["trigger", "invoices.sync", '{"customer": "a"}', "--delay", "soon"], "duration"),
        (2, ["runs", "show", "not-an-id"], "not a UUID"),
        (1, ["runs", "show", "01900000-0000-7000-8000-000000000000"], "runlane runs list"),
        (1, ["queues", "pause", "nowhere"], "invoice_sync"),
        (2, ["runs", "list", "--app", "nowhere:at_all"], "module:attribute"),
    ],
)
def test_a_refusal_is_said_in_words(run: Run, code: int, arguments: list[str], says: str) -> None:
    refused = run(*arguments)
    assert (refused.code, refused.out) == (code, "")
    assert says in refused.err
    assert "Traceback" not in refused.err


def test_an_error_is_a_document_too(run: Run) -> None:
    refused = run("runs", "show", "01900000-0000-7000-8000-000000000000", "--json")
    assert list(json.loads(refused.err)["error"]) == ["code", "message", "retryable", "meta"]


@pytest.mark.parametrize("arguments", [["runs", "list"], ["migrate"]])
def test_a_database_out_of_reach_is_said_in_words(tmp_path: Path, arguments: list[str]) -> None:
    refused = runlane(*arguments, folder=tmp_path, timeout=60, **NOBODY)
    assert refused.code == 1
    assert "Connection refused" in refused.err
    assert "Traceback" not in refused.err


def test_without_servers_the_way_to_some_is_shown(tmp_path: Path) -> None:
    refused = runlane("runs", "list", folder=tmp_path)
    assert refused.code == 1
    assert "runlane dev" in refused.err


def test_what_a_shell_read_of_an_ended_session_is_left_out(run: Run, tmp_path: Path) -> None:
    read = {**NOBODY, "RUNLANE_DEV_PID": "1", "RUNLANE_DEV_MADE": "DATABASE_URL RUNLANE_QUEUE_URL"}
    assert run("runs", "list", **read).code == 0
    assert "set exactly one of DATABASE_URL" in runlane("runs", "list", folder=tmp_path, timeout=60, **read).err


def test_a_fault_of_the_application_is_shown_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from runlane import Queue\n\nQueue('main').nothing\n")
    (tmp_path / "typo.py").write_text("\ndef (\n")
    for module, line in (("mine", 3), ("typo", 2)):
        refused = runlane("--app", f"{module}:runlane", "runs", "list", folder=tmp_path, timeout=60, **NOBODY)
        assert f"{module}.py:{line}" in refused.err
        assert "Traceback" not in refused.err


def test_a_session_says_how_to_try_the_tasks_it_has(run: Run, project: Path) -> None:
    greeting = (project / "dev.log").read_text()
    assert "invoices.sync, receipts.send, exports.fetch" in greeting
    assert "runlane trigger invoices.sync '{" in greeting
    assert ". .runlane/env; python script.py" in greeting


def test_dev_without_an_application_says_what_is_missing(tmp_path: Path) -> None:
    refused = runlane("dev", "--app", "nowhere:runlane", folder=tmp_path)
    assert refused.code == 2
    assert "RUNLANE_APP: nowhere:runlane was not found" in refused.err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["trigger", "-h"]])
def test_help_needs_no_server_and_no_driver(tmp_path: Path, arguments: list[str]) -> None:
    program = textwrap.dedent("""
        import sys
        from runlane.cli import run
        run(sys.argv[1:])
        sys.exit(str({"boto3", "botocore", "psycopg", "aws_lambda_powertools"} & set(sys.modules)))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, env=variables(), capture_output=True, text=True, check=False
    )
    assert done.stderr.endswith("set()\n")
    assert "Usage" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["runs", "list", "--limit", "many"], ["runs", "list", "--status", "asleep"], ["demo", "--runs", "1"]]
)
def test_what_is_not_understood_is_a_usage_error(tmp_path: Path, arguments: list[str]) -> None:
    refused = runlane(*arguments, folder=tmp_path)
    assert refused.code == 2
    assert "Usage" in refused.err
