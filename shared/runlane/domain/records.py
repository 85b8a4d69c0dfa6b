"""What reads of runs, queues and schedules are asked for and return. A file of its own, as no delivery needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from runlane.domain.event import EventType
from runlane.domain.ids import RunId
from runlane.domain.outcome import Failure
from runlane.domain.run import Source, Status
from runlane.domain.schedule import CatchUp


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


@dataclass(frozen=True, slots=True)
class RunFilter:
    """All given conditions hold; None means any."""

    statuses: frozenset[Status] | None = None
    task: str | None = None
    queue: str | None = None
    tenant: str | None = None
    concurrency_key: str | None = None
    source: Source | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """`next_cursor` is opaque; give it back with the same filter. None: the last page."""

    data: tuple[RunSummary, ...] = field(default=())
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue's counters, read without scanning runs.

    `blocked` counts partitions by what blocks them: `concurrency_limit`, `throttled`, `total_limit`, `window`, `paused`.
    `oldest_due_for` is how long the oldest due run has waited; None when none is due.
    """

    queue: str
    waiting: int
    scheduled: int
    due: int
    dispatched: int
    running: int
    oldest_due_for: timedelta | None
    partitions: int
    blocked: Mapping[str, int]
    paused: bool


@dataclass(frozen=True, slots=True)
class Fire:
    """One occasion of a schedule. `due_at`: when its run starts, later than `fire_at` by the jitter."""

    fire_at: datetime
    due_at: datetime


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    """By an operator, until `schedules.resume`."""
    DISABLED = "disabled"
    """By the code, with `enabled=False`."""
    ENDED = "ended"
    """It will not fire again."""
    UNREADABLE = "unreadable"
    """This process does not know when it fires: a newer release put it in force, or its zone is unknown here."""


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule in force. `next_fire_at`: None unless it is active. `last_fire_at` and `last_run_id`: of the last fire that has come."""

    schedule_id: str
    state: ScheduleState
    task: str
    queue: str
    cron: str | None
    timezone: str | None
    """Of a cron expression."""
    every: timedelta | None
    run_at: datetime | None
    jitter: timedelta
    catch_up: CatchUp
    payload: Any
    enabled: bool
    paused_at: datetime | None
    next_fire_at: datetime | None
    last_fire_at: datetime | None
    last_run_id: RunId | None


@dataclass(frozen=True, slots=True)
class PausedSchedule:
    """A schedule after `schedules.pause`. `cancelled`: how many runs whose time had not come were; 0 if it was paused before."""

    schedule: ScheduleRecord
    cancelled: int
