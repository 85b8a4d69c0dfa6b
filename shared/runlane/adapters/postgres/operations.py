"""What operators ask of storage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.rows import (
    claim_batch,
    decode_json,
    decode_object,
    encode_runs,
    recorded_run,
    sorted_ids,
    trigger_batch,
    wakeups,
)
from runlane.domain.ids import RunId
from runlane.domain.run import Status
from runlane.ports.operations import ChildBatch, Origin, PruneFilter, PruneStep, RefusedOrigin, RescheduleAnswer, StartedRun
from runlane.ports.stores import NewRun, Wakeup


class PostgresOperationStore:
    def __init__(self, session: Session) -> None:
        self._session = session

    def run_now(self, run: NewRun, *, lease_for: timedelta, worker: str) -> StartedRun:
        rows = self._session.run("run_now", {"runs": encode_runs([run]), "lease": lease_for, "worker": worker})
        batch = claim_batch(rows)
        (recorded,) = (recorded_run(row[1], row[16], row[11], row[17], row[5]) for row in rows if row[0] == "run")
        starved = tuple({row[4] for row in rows if row[0] == "starved"})
        return StartedRun(recorded, batch.claims[0] if batch.claims else None, batch.wakeups, starved)

    def read_origins(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Origin]:
        rows = self._session.run("read_origins", {"ids": sorted_ids(run_ids)})
        return {row[0]: _origin(row) for row in rows}

    def rerun_runs(self, runs: Sequence[NewRun], *, only_failed: bool) -> ChildBatch:
        effects = self._session.run("rerun_runs", {"runs": encode_runs(runs), "only_failed": only_failed})
        batch = trigger_batch(effects, runs, eager=True)
        places = sorted(row[1] for row in effects if row[0] == "run")
        origins = [RunId(runs[place - 1].source_run_id or "") for place in places]
        refused = {RunId(row[2]): RefusedOrigin(row[3], (decode_json(row[9]) or {}).get("child")) for row in effects if row[0] == "refused"}
        return ChildBatch(dict(zip(origins, batch.runs, strict=True)), refused, batch.wakeups, batch.starved_queues)

    def cancel_runs(
        self, run_ids: Collection[RunId], *, actor: str | None, reason: str | None
    ) -> tuple[Mapping[RunId, Status], tuple[Wakeup, ...]]:
        effects = self._session.run("cancel_runs", {"ids": sorted_ids(run_ids), "actor": actor, "reason": reason})
        return {RunId(row[2]): Status(row[3]) for row in effects if row[0] == "cancelled"}, wakeups(effects)

    def reschedule_run(self, run_id: RunId, run_at: datetime, *, actor: str | None) -> RescheduleAnswer | None:
        effects = self._session.run("reschedule_run", {"run_id": run_id, "run_at": run_at, "actor": actor})
        answer = next((row for row in effects if row[0] in ("rescheduled", "refused")), None)
        return None if answer is None else RescheduleAnswer(Status(answer[3]), answer[0] == "refused", wakeups(effects))

    def prune_runs(self, prune_filter: PruneFilter, *, after: RunId | None, limit: int, dry_run: bool) -> PruneStep:
        asked = {
            "older_than": prune_filter.older_than,
            "statuses": sorted(prune_filter.statuses),
            "task": prune_filter.task,
            "queue": prune_filter.queue,
            "after": after,
            "limit": limit,
            "dry_run": dry_run,
        }
        (row,) = self._session.run("prune_runs", asked)
        return PruneStep(*row)


def _origin(row: tuple[Any, ...]) -> Origin:
    run_id, task, queue, status, payload, tenant, concurrency_key, priority, singleton_key, meta, child_id = row
    return Origin(
        run_id,
        task,
        queue,
        Status(status),
        payload.decode(),
        tenant,
        concurrency_key,
        priority,
        singleton_key,
        decode_object(meta),
        child_id,
    )
