"""What every command's `--help` ends with: an example, and the fields of the document that `--json` answers with.

Fields are only ever added. The document is one, indented; with `--watch` it is one on a line for each change. Times are ISO 8601 in
UTC, durations seconds. An error is a document on the standard error: `error` with `code`, `message`, `retryable` and `meta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from runlane.domain.finding import Finding
from runlane.domain.records import AttemptRecord, EventRecord, Fire, QueueStats, RunRecord, RunSummary, ScheduleRecord
from runlane.domain.verification import Invariant


def names(record: type) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(record))


@dataclass(frozen=True, slots=True)
class Manual:
    """`fields` of the document; `entries`: those of what a list in it holds."""

    example: str
    fields: tuple[str, ...]
    entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def epilog(self) -> str:
        shown = (f"{name} (each with {', '.join(self.entries[name])})" if name in self.entries else name for name in self.fields)
        return f"Example: {self.example}\n\nFields of --json: {', '.join(shown)}"


STEERED = ("data", "matched", "done", "refused", "next_cursor", "next", "dry_run")
"""`data`: the runs that were named by id; those of a filter are only counted. `refused`: the first hundred."""
CHILD = ("run_id", "status", "outcome", "child_run_id")
REFUSED = ("run_id", "code", "message")

MANUALS: Mapping[str, Manual] = {
    "demo": Manual("runlane demo --runs 500", ("queues", "checks", "play_seconds", "seconds")),
    "dev": Manual(
        "runlane dev --workers 2 --tick-every 10s",
        ("app", "tasks", "environment", "database_url", "queue_url", "workers", "tick_every", "migrated", "variables"),
    ),
    "migrate": Manual("runlane migrate --phase before", ("applied",)),
    "doctor": Manual("runlane doctor --strict --json", ("is_well", "findings"), {"findings": names(Finding)}),
    "verify": Manual("runlane verify --since 1d", ("holds", "seconds", "invariants"), {"invariants": names(Invariant)}),
    "template": Manual("runlane template --write template.yaml", ("queues", "is_current", "blocks")),
    "trigger": Manual(
        """runlane trigger invoices.sync '{"customer": "acme"}' --wait 30s""",
        ("run_id", "outcome", "task", "queue", "status", "due_at", "payload_matches"),
    ),
    "worker": Manual("runlane worker --mode poll --queue main --concurrency 20 --health-port 8080", ("mode", "queues", "attempts", "left")),
    "tick": Manual("runlane tick", ("counts", "failed", "unfinished")),
    "runs list": Manual(
        "runlane runs list --status failed --created-after 2h", ("data", "next_cursor", "next"), {"data": names(RunSummary)}
    ),
    "runs show": Manual("runlane runs show RUN_ID --watch", (*names(RunRecord), "attempts"), {"attempts": names(AttemptRecord)}),
    "runs events": Manual("runlane runs events RUN_ID", ("data",), {"data": names(EventRecord)}),
    "runs find": Manual(
        "runlane runs find receipts.send --idempotency-key receipt/17", (*names(RunRecord), "attempts"), {"attempts": names(AttemptRecord)}
    ),
    "runs retry": Manual(
        "runlane runs retry --task exports.fetch --created-after 2h --dry-run", STEERED, {"data": CHILD, "refused": REFUSED}
    ),
    "runs rerun": Manual('runlane runs rerun RUN_ID --reason "the provider lost it"', STEERED, {"data": CHILD, "refused": REFUSED}),
    "runs reschedule": Manual("runlane runs reschedule RUN_ID --in 10m", ("run_id", "status", "due_at")),
    "prune": Manual("runlane prune --older-than 30d --status succeeded --dry-run", STEERED, {"refused": REFUSED}),
    "runs cancel": Manual(
        'runlane runs cancel RUN_ID --reason "wrong customer"', STEERED, {"data": ("run_id", "status"), "refused": REFUSED}
    ),
    "queues stats": Manual("runlane queues stats invoice_sync --watch --every 2s", ("data",), {"data": names(QueueStats)}),
    "queues pause": Manual("runlane queues pause invoice_sync --key acme", ("queue", "tenant", "concurrency_key", "given_back")),
    "queues resume": Manual("runlane queues resume invoice_sync --key acme", ("queue", "tenant", "concurrency_key", "published")),
    "queues weight": Manual("runlane queues weight main acme 3", ("queue", "tenant", "weight")),
    "schedules list": Manual("runlane schedules list", ("data",), {"data": names(ScheduleRecord)}),
    "schedules next": Manual("runlane schedules next invoices.nightly --count 10", ("data",), {"data": names(Fire)}),
    "schedules pause": Manual("runlane schedules pause invoices.nightly", ("schedule_id", "cancelled")),
    "schedules resume": Manual("runlane schedules resume invoices.nightly", ("schedule_id", "state", "next_fire_at")),
    "schedules trigger": Manual("runlane schedules trigger invoices.nightly", ("schedule_id", "run_id", "outcome", "status")),
    "idempotency-keys reset": Manual("runlane idempotency-keys reset receipts.send receipt/17", ("task", "key", "freed")),
}
"""By the words of the command. `trigger --wait` answers with the document of `runs show`."""


def epilog(command: str) -> str:
    return MANUALS[command].epilog
