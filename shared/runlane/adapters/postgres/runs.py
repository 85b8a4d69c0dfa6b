"""Reads and control of single runs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.rows import decode_failure, decode_json, decode_object, wakeups
from runlane.domain.errors import ContractError
from runlane.domain.event import EventType
from runlane.domain.ids import RunId, parse_run_id
from runlane.domain.records import AttemptRecord, EventRecord, Page, RunFilter, RunRecord, RunSummary
from runlane.domain.run import Source, Status
from runlane.ports.stores import Wakeup

_ENDS = frozenset(
    {
        EventType.SUCCEEDED,
        EventType.FAILED,
        EventType.CANCELLED,
        EventType.RETRY_SCHEDULED,
        EventType.RELEASED,
        EventType.LEASE_EXPIRED,
        EventType.RESCHEDULED,
    }
)


class PostgresRunStore:
    def __init__(self, session: Session) -> None:
        self._session = session

    def get_run(self, run_id: RunId) -> RunRecord | None:
        rows = self._session.run("get_run", {"run_id": run_id})
        return _record(rows[0]) if rows else None

    def list_runs(self, run_filter: RunFilter, *, limit: int, cursor: str | None) -> Page:
        rows = self._session.run(
            "list_runs",
            {
                "statuses": None if run_filter.statuses is None else [status.value for status in run_filter.statuses],
                "task": run_filter.task,
                "queue": run_filter.queue,
                "tenant": run_filter.tenant,
                "key": run_filter.concurrency_key,
                "source": run_filter.source,
                "after": run_filter.created_after,
                "before": run_filter.created_before,
                "cursor": None if cursor is None else _read_cursor(cursor, run_filter),
                "limit": limit + 1,
            },
        )
        data = tuple(map(_summary, rows[:limit]))
        return Page(data, _make_cursor(data[-1].run_id, run_filter) if len(rows) > limit else None)

    def list_events(self, run_id: RunId) -> tuple[EventRecord, ...]:
        return tuple(map(_event, self._session.run("list_events", {"run_id": run_id})))

    def list_attempts(self, run_id: RunId) -> tuple[AttemptRecord, ...]:
        return attempts_of(self.list_events(run_id))

    def cancel_run(self, run_id: RunId, *, actor: str | None, reason: str | None) -> tuple[Status | None, tuple[Wakeup, ...]]:
        effects = self._session.run("cancel_run", {"run_id": run_id, "actor": actor, "reason": reason})
        status = next((Status(row[3]) for row in effects if row[0] == "cancelled"), None)
        return status, wakeups(effects)

    def find_owner(
        self, task: str, *, singleton_key: str | None = None, idempotency_key: str | None = None, retained: bool = False
    ) -> RunRecord | None:
        rows = self._session.run(
            "find_owner", {"task": task, "singleton_key": singleton_key, "idempotency_key": idempotency_key, "retained": retained}
        )
        return self.get_run(RunId(rows[0][0])) if rows else None

    def reset_idempotency_key(self, task: str, key: str) -> bool:
        ((freed,),) = self._session.run("reset_idempotency_key", {"task": task, "key": key})
        return bool(freed)


def attempts_of(events: Iterable[EventRecord]) -> tuple[AttemptRecord, ...]:
    """The attempts that a history tells of; one that was handed back does not count."""
    attempts: list[AttemptRecord] = []
    for event in events:
        if event.type is EventType.CLAIMED:
            attempts.append(AttemptRecord(event.attempt or 0, event.at, None, None, event.actor, None))
        elif event.type in _ENDS and attempts and attempts[-1].ended_at is None:
            started = attempts.pop()
            if event.type is not EventType.RESCHEDULED:
                failure = decode_failure((event.data or {}).get("failure"))
                attempts.append(AttemptRecord(started.attempt, started.claimed_at, event.at, event.type, started.worker, failure))
    return tuple(attempts)


def _summary(row: tuple[Any, ...]) -> RunSummary:
    run_id, task, queue, status, tenant, concurrency_key, attempt, failures, created_at, due_at, ended_at, source, source_run_id = row
    return RunSummary(
        RunId(run_id), task, queue, Status(status), tenant, concurrency_key, attempt, failures, created_at, due_at, ended_at,
        Source(source), source_run_id,
    )  # fmt: skip


def _record(row: tuple[Any, ...]) -> RunRecord:
    (
        run_id, task, queue, status, tenant, concurrency_key, attempt, failures, created_at, due_at, ended_at, payload, result, failure,
        priority, idempotency_key, singleton_key, max_attempts, start_timeout, finish_timeout, actor, trace, meta, lease_expires_at,
        cancellation_requested_at, source, source_run_id,
    ) = row  # fmt: skip
    return RunRecord(
        run_id=RunId(run_id),
        task=task,
        queue=queue,
        status=Status(status),
        tenant=tenant,
        concurrency_key=concurrency_key,
        attempt=attempt,
        failures=failures,
        created_at=created_at,
        due_at=due_at,
        ended_at=ended_at,
        payload=decode_json(payload),
        result=decode_json(result),
        failure=decode_failure(decode_json(failure)),
        priority=priority,
        idempotency_key=idempotency_key,
        singleton_key=singleton_key,
        max_attempts=max_attempts,
        start_timeout=start_timeout,
        finish_timeout=finish_timeout,
        actor=actor,
        trace=decode_object(trace),
        meta=decode_object(meta),
        lease_expires_at=lease_expires_at,
        cancellation_requested_at=cancellation_requested_at,
        source=Source(source),
        source_run_id=source_run_id,
    )


def _event(row: tuple[Any, ...]) -> EventRecord:
    run_id, seq, kind, at, actor, attempt, slot_seq, occupied, queue_slot_seq, queue_occupied, data = row
    return EventRecord(
        RunId(run_id), seq, EventType(kind), at, actor, attempt, slot_seq, occupied, queue_slot_seq, queue_occupied, decode_json(data)
    )


def _make_cursor(last: RunId, run_filter: RunFilter) -> str:
    return base64.urlsafe_b64encode(json.dumps([1, last, _digest(run_filter)]).encode()).decode().rstrip("=")


def _read_cursor(cursor: str, run_filter: RunFilter) -> RunId:
    try:
        version, last, digest = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        run_id = parse_run_id(last)
    except (ValueError, TypeError, RecursionError, ContractError) as error:
        raise ContractError("cursor_invalid", "cursor: not one that a list returned; start again without it") from error
    if version != 1 or digest != _digest(run_filter):
        raise ContractError("cursor_invalid", "cursor: made for another filter; give the same filter, or start again without it")
    return run_id


def _digest(run_filter: RunFilter) -> str:
    values = [sorted(value) if isinstance(value, frozenset) else str(value) for value in astuple(run_filter)]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
