"""The command line against a development session: found without configuration, documents with fixed fields, errors without tracebacks."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from runlane.cli import dev_session
from runlane.cli.manual import MANUALS
from runlane.domain.errors import ConfigurationError
from runlane.services.operate.runs import Runs
from runlane.settings import read_settings
from tests.acceptance.command import Answer, command, inside, runlane, variables
from tests.acceptance.conftest import Run

SUMMARY = [
    "run_id",
    "task",
    "queue",
    "status",
    "tenant",
    "concurrency_key",
    "attempt",
    "failures",
    "created_at",
    "due_at",
    "ended_at",
    "source",
    "source_run_id",
]
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


@contextmanager
def watching(folder: Path, *arguments: str, stdout: int = subprocess.PIPE, **given: str) -> Iterator[subprocess.Popen[str]]:
    words = command(*arguments, "--watch", "--every", "100ms")
    with subprocess.Popen(words, cwd=folder, env=variables(**given), stdout=stdout, text=True) as watched:
        # A line that never comes ends the watch, and with it the test.
        too_long = threading.Timer(30, watched.kill)
        too_long.start()
        try:
            yield watched
        finally:
            too_long.cancel()
            watched.kill()


def test_a_run_is_triggered_awaited_and_remembered(shell: Run, run: Run) -> None:
    done = shell("trigger", "invoices.sync", '{"customer": "acme"}', "--wait", "60s", "--json")
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
    cancelled = run("runs", "cancel", waiting, "--reason", "a test", "--json").document
    assert (tuple(cancelled), cancelled["data"]) == (MANUALS["runs cancel"].fields, [{"run_id": waiting, "status": "cancelled"}])
    assert run("queues", "resume", "main").out.startswith("resumed: no run waited that could start\n")
    assert "paused" not in run("queues", "stats", "main").out


def test_lists_filter_and_page(run: Run) -> None:
    for number in range(3):
        run("trigger", "receipts.send", json.dumps({"invoice_id": f"page-{number}", "address": "a"}), "--tenant", "pages")
    first = run("runs", "list", "--tenant", "pages", "--limit", "2", "--json").document
    assert all(list(summary) == SUMMARY for summary in first["data"])
    rest = run("runs", "list", "--tenant", "pages", "--limit", "2", "--cursor", first["next_cursor"], "--json").document
    assert [len(first["data"]), len(rest["data"]), rest["next_cursor"]] == [2, 1, None]
    assert run("--json", "runs", "list", "--status", "failed", "--task", "nothing").document == {
        "data": [],
        "next_cursor": None,
        "next": None,
    }


def test_the_next_page_is_a_command_that_means_the_same_whenever_it_is_run(run: Run) -> None:
    for number in range(2):
        run("trigger", "receipts.send", json.dumps({"invoice_id": f"next-{number}", "address": "a"}), "--tenant", "a 'b' \x1b[31m")
    words = ["runs", "list", "--tenant", "a 'b' \x1b[31m", "--created-after", "2h", "--created-before", "2999-01-01", "--limit", "1"]
    first = run(*words, "--json").document
    shown = run(*words).out
    assert "\x1b" not in shown
    assert first["next"].replace(" --tenant", "").split()[:3] == ["runlane", "runs", "list"]
    named = next(line for line in shown.splitlines() if line.startswith("next: ")).removeprefix("next: ")
    # What bash makes of the line is what a person gets who copies it.
    copied = subprocess.run(["bash", "-c", f"printf '%s\\0' {named}"], capture_output=True, text=True, check=True).stdout.split("\0")[1:-1]
    rest = run(*copied, "--json").document
    assert [len(page["data"]) for page in (first, rest)] == [1, 1]
    assert (rest["next"], first["data"] == rest["data"]) == (None, False)


def test_a_cursor_of_another_filter_is_refused(run: Run) -> None:
    cursor = run("runs", "list", "--limit", "1", "--json").document["next_cursor"]
    assert "made for another filter" in run("runs", "list", "--task", "receipts.send", "--cursor", cursor).err


def test_runs_of_a_task_that_left_may_be_asked_for_and_a_slip_is_told(run: Run) -> None:
    listed = run("runs", "list", "--task", "invoice.sync")
    assert (listed.code, listed.out) == (0, "no run matches; the application has no task 'invoice.sync'; did you mean 'invoices.sync'?\n")


def test_several_runs_are_cancelled_each_for_itself(run: Run) -> None:
    held = [run("trigger", "exports.fetch", '{"export_id": "x"}', "--delay", "1h", "--json").document["run_id"] for _ in range(2)]
    unknown = "01900000-0000-7000-8000-000000000000"
    cancelled = run("runs", "cancel", *held, unknown, "--json")
    assert cancelled.code == 1
    assert cancelled.document["data"] == [{"run_id": run_id, "status": "cancelled"} for run_id in held]
    assert [(entry["run_id"], entry["code"]) for entry in cancelled.document["refused"]] == [(unknown, "run_not_found")]
    assert run("runs", "cancel", held[0], "nonsense").code == 2


def test_a_failed_run_is_retried_once_and_rerun_as_often_as_asked(run: Run) -> None:
    failed = run("trigger", "exports.fetch", '{"export_id": "nonsense"}', "--wait", "60s", "--json").document["run_id"]
    retried = run("runs", "retry", failed, "--reason", "a test", "--json").document["data"]
    assert [tuple(entry) for entry in retried] == [MANUALS["runs retry"].entries["data"]]
    assert (retried[0]["run_id"], retried[0]["outcome"]) == (failed, "created")
    assert json.loads(run("runs", "retry", failed, "--json").err)["error"]["code"] == "already_retried"
    again = run("runs", "rerun", failed)
    assert (again.code, "made again as" in again.out, "--watch" in again.out) == (0, True, True)
    children = run("runs", "list", "--source", "rerun", "--json").document["data"]
    assert [(child["source"], child["source_run_id"]) for child in children] == [("rerun", failed)]


def test_runs_of_a_filter_are_cancelled_page_by_page(run: Run) -> None:
    for number in range(3):
        run("trigger", "exports.fetch", json.dumps({"export_id": f"{number}"}), "--delay", "1h", "--tenant", "bulk")
    words = ["runs", "cancel", "--tenant", "bulk", "--created-after", "1h"]
    unasked = run(*words)
    assert (unasked.code, "3 runs to cancel, and nobody to ask; give --yes" in unasked.err) == (2, True)
    tried = run(*words, "--dry-run", "--json").document
    assert (tried["matched"], tried["done"], tried["dry_run"]) == (3, 3, True)
    first = run(*words, "--yes", "--limit", "2", "--json").document
    assert tuple(first) == MANUALS["runs cancel"].fields
    assert (first["matched"], first["done"], first["refused"]) == (2, 2, [])
    rest = run(*shlex.split(first["next"])[1:], "--json").document
    assert (rest["done"], rest["next"]) == (1, None)
    assert run(*words, "--yes").out == "0 runs cancelled\n"


def test_who_is_asked_may_say_no(run: Run) -> None:
    run("trigger", "exports.fetch", '{"export_id": "x"}', "--delay", "1h", "--tenant", "asked")
    said_no = run("runs", "cancel", "--tenant", "asked", stdin="n\n", is_terminal=True)
    assert (said_no.code, said_no.out) == (1, "")
    assert said_no.err == "1 run to cancel. Go on? [y/N] error: aborted; nothing was done\n"
    assert run("runs", "cancel", "--tenant", "asked", stdin="y\n", is_terminal=True).out == "1 run cancelled\n"


def test_a_waiting_run_is_moved_to_another_time(run: Run) -> None:
    run_id = run("trigger", "exports.fetch", '{"export_id": "x"}', "--delay", "1h", "--json").document["run_id"]
    moved = run("runs", "reschedule", run_id, "--at", "2999-01-01T00:00+01:00", "--json").document
    assert moved == {"run_id": run_id, "status": "scheduled", "due_at": "2998-12-31T23:00:00Z"}
    assert run("runs", "show", run_id, "--json").document["due_at"] == moved["due_at"]
    assert run("runs", "reschedule", run_id, "--in", "2h").out.startswith("scheduled, due ")
    run("runs", "cancel", run_id)
    assert "only a run that waits" in run("runs", "reschedule", run_id, "--in", "1s").err


def test_who_stops_waiting_is_told_that_the_run_goes_on(run: Run) -> None:
    with mock.patch.object(Runs, "wait", side_effect=KeyboardInterrupt):
        stopped = run("trigger", "exports.fetch", '{"export_id": "x"}', "--delay", "1h", "--tenant", "awaited", "--wait", "1h")
    (run_id,) = (found["run_id"] for found in run("runs", "list", "--tenant", "awaited", "--json").document["data"])
    assert stopped == Answer(130, "", f"the run goes on: runlane runs show {run_id} --watch\n")
    run("runs", "cancel", run_id)


def test_a_database_of_an_older_checkout_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise ConfigurationError("migration 0001_tables was applied with another text; never", code="migration_edited")

    monkeypatch.setattr(dev_session, "migrate", refuse)
    settings = read_settings(NOBODY)
    with pytest.raises(ConfigurationError, match=r"0001_tables has changed since.*: rm -r \S*\.runlane$"):
        dev_session._migrated(settings, ["DATABASE_URL"])
    with pytest.raises(ConfigurationError, match=r"never$"):
        dev_session._migrated(settings, [])


def test_the_owner_of_a_key_is_found(run: Run) -> None:
    receipt = ["receipts.send", '{"invoice_id": "owned", "address": "a"}']
    run_id = run("trigger", *receipt, "--singleton-key", "one", "--wait", "60s", "--json").document["run_id"]
    found = run("runs", "find", "receipts.send", "--idempotency-key", "receipt/owned", "--json").document
    assert (list(found), found["run_id"]) == (RECORD, run_id)
    active = run("runs", "find", "receipts.send", "--idempotency-key", "receipt/owned", "--active")
    ended = run("runs", "find", "receipts.send", "--singleton-key", "one")
    assert (active.code, ended.code, active.err) == (1, 1, ended.err)
    assert "a trigger with it makes a new one" in ended.err
    waiting = run("trigger", *receipt, "--idempotency-key", "x", "--singleton-key", "one", "--delay", "1h", "--json").document["run_id"]
    assert waiting in run("runs", "find", "receipts.send", "--singleton-key", "one").out
    run("runs", "cancel", waiting)


def test_ended_runs_are_pruned(run: Run) -> None:
    words = ["prune", "--older-than", "0s", "--status", "cancelled", "--task", "exports.fetch"]
    count = len(run("runs", "list", "--status", "cancelled", "--task", "exports.fetch", "--limit", "200", "--json").document["data"])
    tried = run(*words, "--dry-run", "--json").document
    assert (tuple(tried), tried["done"] == count > 0) == (MANUALS["prune"].fields, True)
    assert tried["next"] == "runlane prune --older-than 0s --status cancelled --task exports.fetch"
    assert run(*words, "--yes").out == f"{count} runs pruned\n"
    assert run("runs", "list", "--status", "cancelled", "--task", "exports.fetch").out == "no run matches\n"


def test_a_run_now_is_made_in_this_process(run: Run) -> None:
    made = run("trigger", "receipts.send", '{"invoice_id": "now", "address": "a"}', "--now", "--json")
    assert (made.code, list(made.document), made.document["status"], made.document["source"]) == (0, RECORD, "succeeded", "run_now")
    failed = run("trigger", "exports.fetch", '{"export_id": "nonsense"}', "--now")
    assert (failed.code, "NonRetryable" in failed.out) == (1, True)
    run("queues", "pause", "exports")
    refused = run("trigger", "exports.fetch", '{"export_id": "x"}', "--now")
    run("queues", "resume", "exports")
    assert (refused.code, refused.out, "runlane queues resume" in refused.err) == (1, "", True)


def test_schedules_are_listed_paused_resumed_and_triggered(run: Run) -> None:
    (record,) = run("schedules", "list", "--json").document["data"]
    assert tuple(record) == MANUALS["schedules list"].entries["data"]
    assert (record["schedule_id"], record["state"], record["timezone"]) == ("invoices.nightly", "disabled", "America/New_York")
    listed = run("schedules", "list").out
    assert "30 2 * * * America/New_York" in listed
    assert listed.endswith("next: runlane schedules next invoices.nightly\n")
    fires = run("schedules", "next", "invoices.nightly", "--count", "3", "--json").document["data"]
    assert [tuple(fire) for fire in fires] == [MANUALS["schedules next"].entries["data"]] * 3
    assert run("schedules", "next", "invoices.nightly").out.count(":30:00Z") == 2 * 5
    paused = run("schedules", "pause", "invoices.nightly", "--json").document
    assert paused == {"schedule_id": "invoices.nightly", "cancelled": 0}
    resumed = run("schedules", "resume", "invoices.nightly", "--json").document
    assert resumed == {"schedule_id": "invoices.nightly", "state": "disabled", "next_fire_at": None}
    made = run("schedules", "trigger", "invoices.nightly", "--json").document
    assert tuple(made) == MANUALS["schedules trigger"].fields
    found = run("runs", "list", "--source", "schedule", "--json").document["data"]
    assert [one["run_id"] for one in found] == [made["run_id"]]


def test_an_unknown_schedule_is_refused_with_what_there_is(run: Run) -> None:
    refused = run("schedules", "pause", "invoices.nightli")
    assert (refused.code, refused.out) == (1, "")
    assert "did you mean 'invoices.nightly'?" in refused.err
    assert run("schedules", "next", "invoices.nightly", "--count", "0").code == 2


def test_a_watched_run_is_told_change_by_change_until_it_ends(project: Path, run: Run) -> None:
    run_id = run("trigger", "exports.fetch", '{"export_id": "x"}', "--delay", "1h", "--json").document["run_id"]
    with watching(project, "runs", "show", run_id, "--json") as watched:
        assert watched.stdout is not None
        assert json.loads(watched.stdout.readline())["status"] == "scheduled"
        run("runs", "cancel", run_id)
        assert json.loads(watched.stdout.readline())["status"] == "cancelled"
        assert (watched.stdout.read(), watched.wait(60)) == ("", 0)


def test_a_watched_queue_is_told_line_by_line_until_interrupted(project: Path, run: Run) -> None:
    with watching(project, "queues", "stats", "exports") as watched:
        assert watched.stdout is not None
        assert watched.stdout.readline().startswith("exports  waiting ")
        run("queues", "pause", "exports")
        assert next(line for line in watched.stdout if line.endswith("blocked: paused\n"))
        run("queues", "resume", "exports")
        assert next(line for line in watched.stdout if "blocked" not in line)
        watched.send_signal(signal.SIGINT)
        assert watched.wait(60) == 0


def test_a_terminal_that_watched_gets_its_cursor_back(project: Path, run: Run) -> None:
    terminal, theirs = pty.openpty()
    with watching(project, "queues", "stats", stdout=theirs, TERM="xterm") as watched:
        os.close(theirs)
        seen = os.read(terminal, 4096)
        while b"invoice_sync" not in seen:
            seen += os.read(terminal, 4096)
        watched.terminate()
        assert watched.wait(60) == 0
    rest = os.read(terminal, 65536)
    os.close(terminal)
    assert b"\x1b[?25l" in seen
    assert b"\x1b[?25h" in rest


def test_a_shell_completes_the_names_of_the_application(run: Run, tmp_path: Path) -> None:
    typed = {"_RUNLANE_COMPLETE": "complete_bash", "COMP_WORDS": "runlane trigger in", "COMP_CWORD": "2"}
    assert run(**typed).out.split() == ["invoices.sync"]
    assert run(**{**typed, "COMP_WORDS": "runlane runs list --queue ", "COMP_CWORD": "4"}).out.split() == [
        "main",
        "invoice_sync",
        "exports",
    ]
    nowhere = inside(folder=tmp_path, **typed)
    assert (nowhere.out.strip(), nowhere.err) == ("", "")


def test_weights_and_keys_are_set_and_freed(run: Run) -> None:
    assert run("queues", "weight", "main", "pages", "3", "--json").document == {"queue": "main", "tenant": "pages", "weight": 3}
    assert "3 turns" in run("queues", "weight", "main", "pages", "3").out
    run("trigger", "receipts.send", '{"invoice_id": "freed", "address": "a"}')
    freed = [run("idempotency-keys", "reset", "receipts.send", "receipt/freed", "--json").document for _ in range(2)]
    assert freed == [{"task": "receipts.send", "key": "receipt/freed", "freed": was_owned} for was_owned in (True, False)]


def test_the_doctor_says_what_is_wrong_and_what_mends_it(run: Run) -> None:
    """On the database of a development session, whose role has no time-outs."""
    done = run("doctor", "--json")
    assert tuple(done.document) == MANUALS["doctor"].fields
    assert all(tuple(finding) == MANUALS["doctor"].entries["findings"] for finding in done.document["findings"])
    wrong = {finding["check"] for finding in done.document["findings"] if finding["level"] in ("warning", "failure")}
    assert (done.code, done.document["is_well"], "settings" in wrong) == (0, True, True)
    assert "remedy: ALTER ROLE" in (told := run("doctor").out)
    assert told.rstrip().endswith("warnings")
    assert run("doctor", "--strict", "--json").code == 1


def test_verify_finds_every_promise_kept(run: Run) -> None:
    done = run("verify", "--json")
    assert (done.code, tuple(done.document)) == (0, MANUALS["verify"].fields)
    assert all(tuple(one) == MANUALS["verify"].entries["invariants"] for one in done.document["invariants"])
    assert done.document["holds"]
    assert not any(one["violations"] for one in done.document["invariants"])
    assert "every promise kept" in run("verify", "--queue", "main", "--since", "1h").out
    made = run("trigger", "receipts.send", '{"invoice_id": "verified", "address": "a"}', "--json").document["run_id"]
    assert "every promise kept" in run("verify", "--run", made).out
    assert run("verify", "--run", made, "--queue", "main").code != 0


def test_the_doctor_says_ahead_of_a_deploy_only_what_it_cannot_do_by_itself(run: Run) -> None:
    done = run("doctor", "--before-deploy", "--json", RUNLANE_APP="nowhere:app")
    checks = {finding["check"] for finding in done.document["findings"]}
    assert (done.code, "schema" in checks, checks & {"maintenance", "application", "queues"}) == (0, True, set())


def test_the_doctor_looks_at_the_database_though_the_application_cannot_be_loaded(run: Run) -> None:
    done = run("doctor", "--json", RUNLANE_APP="nowhere:app")
    failures = [
        (finding["check"], "nowhere:app" in finding["what"]) for finding in done.document["findings"] if finding["level"] == "failure"
    ]
    assert (done.code, failures) == (1, [("application", True)])
    assert "retention" in {finding["check"] for finding in done.document["findings"]}


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
        (2, ["trigger", "invoice.sync"], "did you mean 'invoices.sync'?"),
        (1, ["queues", "stats", "mian"], "did you mean 'main'?"),
        (2, ["queues", "stats", "--watch", "--every", "1ms"], "--every: '1ms' is more often"),
        (2, ["queues", "weight", "main", "acme", "0"], "weight: 0"),
        (2, ["runs", "list", "--created-after", "yesterday"], "--created-after: 'yesterday' is neither a duration"),
        (2, ["runs", "list", "--created-before", "2026-13-01"], "--created-before: '2026-13-01' is no time"),
        (2, ["runs", "list", "--limit", "201"], "limit"),
        (2, ["runs", "list", "--task", ""], "task"),
        (2, ["runs", "cancel"], "no run is named; give ids, or filters"),
        (2, ["runs", "retry", "01900000-0000-7000-8000-000000000000", "--queue", "main"], "exclude each other"),
        (2, ["runs", "rerun", "--all", "--queue", "main"], "exclude each other"),
        (2, ["runs", "retry", "--status", "succeeded", "--yes"], "cannot be"),
        (2, ["runs", "find", "receipts.send"], "--singleton-key: give it or --idempotency-key"),
        (2, ["trigger", "receipts.send", "--singleton-mode", "both"], "is not one of"),
        (2, ["runs", "reschedule", "01900000-0000-7000-8000-000000000000"], "--at: give it or --in"),
        (2, ["prune", "--older-than", "soon"], "--older-than: 'soon' is not a duration"),
        (2, ["prune", "--older-than", "1d", "--status", "running", "--yes"], "cannot be pruned"),
        (2, ["trigger", "exports.fetch", '{"export_id": "x"}', "--now", "--wait", "1s"], "--wait: --now has waited"),
        (2, ["trigger", "exports.fetch", '{"export_id": "x"}', "--now", "--delay", "1s"], "--delay: a run now is due now"),
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
    assert json.loads(run("runs", "list", "--limit", "many", "--json").err)["error"]["code"] == "usage_invalid"


@pytest.mark.parametrize("arguments", [["runs", "list"], ["migrate"]])
def test_a_database_out_of_reach_is_said_in_words(tmp_path: Path, arguments: list[str]) -> None:
    refused = runlane(*arguments, folder=tmp_path, timeout=60, **NOBODY)
    assert refused.code == 1
    assert "Connection refused" in refused.err
    assert "Traceback" not in refused.err


def test_a_database_without_a_schema_is_told_with_the_remedy(run: Run) -> None:
    refused = run("tick", RUNLANE_SCHEMA="nowhere")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "error: the database has no schema of this release: run `runlane migrate`\n"


def test_without_servers_the_way_to_some_is_shown(tmp_path: Path) -> None:
    refused = runlane("runs", "list", folder=tmp_path)
    assert refused.code == 1
    assert "runlane dev" in refused.err


def test_what_a_shell_read_of_an_ended_session_is_left_out(run: Run, tmp_path: Path) -> None:
    read = {**NOBODY, "RUNLANE_DEV_PID": "1", "RUNLANE_DEV_MADE": "DATABASE_URL RUNLANE_QUEUE_URL"}
    assert run("runs", "list", **read).code == 0
    assert "no database is named: set DATABASE_URL" in runlane("runs", "list", folder=tmp_path, timeout=60, **read).err


def test_a_fault_of_the_application_is_shown_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from runlane import Queue\n\nQueue('main').nothing\n")
    (tmp_path / "typo.py").write_text("\ndef (\n")
    for module, line in (("mine", 3), ("typo", 2)):
        refused = runlane("--app", f"{module}:runlane", "runs", "list", folder=tmp_path, timeout=60, **NOBODY)
        assert f"{module}.py:{line}" in refused.err
        assert "Traceback" not in refused.err


def test_a_session_says_how_to_try_the_tasks_it_has(run: Run, project: Path) -> None:
    greeting = (project / "dev.log").read_text()
    assert re.search(r"\d\dZ  runs: \d+ succeeded\n", greeting), "what ended is told"
    assert "invoices.sync, receipts.send, exports.fetch" in greeting
    (shown,) = re.findall(r"^  runlane (trigger .*)$", greeting, re.MULTILINE)
    assert shown == """trigger invoices.sync '{"customer": "acme"}' --wait 30s"""
    assert run(*shlex.split(shown)).code == 0
    assert ". .runlane/env; python script.py" in greeting


@pytest.mark.parametrize(
    "words",
    [["migrate"], ["tick"], ["runs", "list"], ["queues", "stats"], ["queues", "pause", "exports"], ["queues", "resume", "exports"]],
    ids=" ".join,
)
def test_a_document_has_the_fields_that_help_lists(run: Run, words: list[str]) -> None:
    manual, document = MANUALS[" ".join(words[:2])], run(*words, "--json").document
    assert tuple(document) == manual.fields
    assert all(tuple(entry) == fields for name, fields in manual.entries.items() for entry in document[name])


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
