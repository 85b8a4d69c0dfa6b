"""Every command shows an example in its help, and the fields of its documents are those that programs already read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest
import typer

from runlane.cli.application import application
from runlane.cli.manual import MANUALS

SUMMARY = "run_id task queue status tenant concurrency_key attempt failures created_at due_at ended_at source source_run_id"
RECORD = (
    f"{SUMMARY} payload result failure priority idempotency_key singleton_key max_attempts start_timeout finish_timeout"
    " actor trace meta lease_expires_at cancellation_requested_at attempts"
)
FIELDS = {
    "demo": "queues checks play_seconds seconds",
    "dev": "app tasks environment database_url queue_url workers tick_every migrated variables",
    "migrate": "applied",
    "template": "queues is_current blocks",
    "trigger": "run_id outcome task queue status due_at payload_matches",
    "worker": "mode queues attempts left",
    "tick": "counts failed unfinished",
    "verify": "holds seconds invariants",
    "verify invariants": "name invariant violations is_cut seconds",
    "runs list": "data next_cursor next",
    "runs list data": SUMMARY,
    **dict.fromkeys(("runs show", "runs find"), RECORD),
    **dict.fromkeys(("runs show attempts", "runs find attempts"), "attempt claimed_at ended_at outcome worker failure"),
    "runs events": "data",
    "runs events data": "run_id sequence type at actor attempt slot_seq occupied queue_slot_seq queue_occupied data",
    "runs reschedule": "run_id status due_at",
    **dict.fromkeys(("runs cancel", "runs retry", "runs rerun", "prune"), "data matched done refused next_cursor next dry_run"),
    **dict.fromkeys(("runs cancel refused", "runs retry refused", "runs rerun refused", "prune refused"), "run_id code message"),
    "runs cancel data": "run_id status",
    "runs retry data": "run_id status outcome child_run_id",
    "runs rerun data": "run_id status outcome child_run_id",
    "queues stats": "data",
    "queues stats data": "queue waiting scheduled due dispatched running oldest_due_for partitions blocked paused",
    "queues pause": "queue tenant concurrency_key given_back",
    "queues resume": "queue tenant concurrency_key published",
    "queues weight": "queue tenant weight",
    "doctor": "is_well findings",
    "doctor findings": "check level what why remedy",
    "schedules list": "data",
    "schedules list data": "schedule_id state task queue cron timezone every run_at jitter catch_up payload enabled paused_at next_fire_at "
    "last_fire_at last_run_id",
    "schedules next": "data",
    "schedules next data": "fire_at due_at",
    "schedules pause": "schedule_id cancelled",
    "schedules resume": "schedule_id state next_fire_at",
    "schedules trigger": "schedule_id run_id outcome status",
    "idempotency-keys reset": "task key freed",
}
"""Add to it; what is taken away or renamed breaks somebody's program."""


def commands() -> Iterator[tuple[str, object]]:
    groups = [((), typer.main.get_command(application))]
    while groups:
        path, group = groups.pop()
        for name, command in getattr(group, "commands", {}).items():
            words = (*path, name)
            groups.append((words, command))
            if not hasattr(command, "commands"):
                yield " ".join(words), command


@pytest.mark.parametrize(("name", "command"), tuple(commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_help_has_an_example_of_this_very_command_and_the_fields(name: str, command: object) -> None:
    assert name in MANUALS, "write its example and its fields into runlane/cli/manual.py"
    manual = MANUALS[name]
    assert getattr(command, "epilog", None) == manual.epilog
    assert manual.example.startswith(f"runlane {name}")
    words = shlex.split(manual.example)[1 + len(name.split()) :]
    known = {option for parameter in getattr(command, "params", ()) for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert getattr(command, "help", ""), "a command says what it does"
    assert all(getattr(parameter, "help", None) for parameter in getattr(command, "params", ()))


def test_the_fields_of_documents_stay() -> None:
    lists = {f"{command} {name}": fields for command, manual in MANUALS.items() for name, fields in manual.entries.items()}
    found = {**{command: manual.fields for command, manual in MANUALS.items()}, **lists}
    assert {name: " ".join(fields) for name, fields in found.items()} == FIELDS
