"""What reads of runs return. A file of its own, as no delivery needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from runlane.domain.event import EventType
from runlane.domain.ids import RunId
from runlane.domain.outcome import Failure
from runlane.domain.run import Source, Status


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run as lists show it. `attempt` numbers claims; `failures` counts since the last release or finished step."""

    run_id: RunId
    task: str
    queue: str
    status: Status
    tenant: str | None
    concurrency_key: str | None
    attempt: int
    failures: int
    created_at: datetime
    due_at: datetime
    ended_at: datetime | None
    source: Source
    source_run_id: RunId | None
    """The run that it is a child of, with `manual_retry` and `rerun`; it stays when that one is pruned."""


@dataclass(frozen=True, slots=True)
class RunRecord(RunSummary):
    """Everything that is stored of a run but its history; payload and result are decoded JSON."""

    payload: Any
    result: Any
    failure: Failure | None
    priority: int
    idempotency_key: str | None
    singleton_key: str | None
    max_attempts: int
    start_timeout: timedelta | None
    finish_timeout: timedelta | None
    actor: str | None
    trace: Mapping[str, str] | None
    meta: Mapping[str, Any] | None
    lease_expires_at: datetime | None
    cancellation_requested_at: datetime | None


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One entry of the append-only history; `sequence` orders a run's events.

    The four slot fields are set on events that take or give a slot of a bounded partition or queue: the counter of
    such events and the occupancy that results, both read under its lock.
    """

    run_id: RunId
    sequence: int
    type: EventType
    at: datetime
    actor: str | None
    attempt: int | None
    slot_seq: int | None
    occupied: int | None
    queue_slot_seq: int | None
    queue_occupied: int | None
    data: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One execution under one lease; `outcome` and `ended_at` are None while it runs."""

    attempt: int
    claimed_at: datetime
    ended_at: datetime | None
    outcome: EventType | None
    worker: str | None
    failure: Failure | None
