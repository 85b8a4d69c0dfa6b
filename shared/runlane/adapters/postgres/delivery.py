"""The worker's floor: claim, heartbeat, settle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.rows import (
    claim_batch,
    encode_settlements,
    id_list,
    name_list,
    settle_and_claim_batch,
    settle_batch,
    sorted_ids,
)
from runlane.domain.ids import RunId
from runlane.domain.outcome import Settlement
from runlane.ports.stores import ClaimBatch, LeaseState, Look, SettleBatch


class PostgresDeliveryStore:
    """Heartbeats have a session of their own, so that a long statement of the work session cannot cost a lease."""

    def __init__(self, session: Session, heartbeat_session: Session) -> None:
        self._session = session
        self._heartbeat_session = heartbeat_session

    def claim_runs(self, run_ids: Sequence[RunId], *, lease_for: timedelta, worker: str, own_only: bool = False) -> ClaimBatch:
        asked = {"ids": sorted_ids(run_ids), "lease": lease_for, "worker": worker, "own_only": own_only}
        return claim_batch(self._session.run("claim_runs", asked))

    def forward_runs(self, run_ids: Sequence[RunId]) -> ClaimBatch:
        return claim_batch(self._session.run("forward_runs", {"ids": sorted_ids(run_ids)}))

    def claim_oldest(self, queues: Collection[str], *, limit: int, lease_for: timedelta, worker: str) -> ClaimBatch:
        asked = {"queues": name_list(tuple(queues)), "limit": limit, "lease": lease_for, "worker": worker}
        return claim_batch(self._session.run("claim_oldest", asked))

    def look(self, queues: Collection[str]) -> Look:
        ((is_dispatched, recorded, due_in, starts_in),) = self._session.run("look", {"queues": name_list(tuple(queues))})
        return Look(is_dispatched, tuple(recorded), due_in, starts_in)

    def heartbeat(self, leases: Mapping[RunId, str], *, lease_for: timedelta) -> tuple[LeaseState, ...]:
        return self._states("heartbeat", leases, {"lease": lease_for})

    def read_leases(self, leases: Mapping[RunId, str]) -> tuple[LeaseState, ...]:
        return self._states("read_leases", leases, {})

    def settle_runs(self, settlements: Sequence[Settlement]) -> SettleBatch:
        return settle_batch(settlements, self._session.run("settle_runs", encode_settlements(settlements)))

    def settle_and_claim(
        self, settlements: Sequence[Settlement], queues: Collection[str], *, limit: int, lease_for: timedelta, worker: str
    ) -> tuple[SettleBatch, ClaimBatch]:
        asked = {"queues": name_list(tuple(queues)), "limit": limit, "lease": lease_for, "worker": worker}
        rows = self._session.run("settle_and_claim", {**encode_settlements(settlements), **asked})
        return settle_and_claim_batch(settlements, rows)

    def _states(self, statement: str, leases: Mapping[RunId, str], extra: Mapping[str, timedelta]) -> tuple[LeaseState, ...]:
        rows = self._heartbeat_session.run(statement, {"ids": id_list(leases), "tokens": id_list(leases.values()), **extra})
        return tuple(LeaseState(RunId(run_id), requested) for run_id, requested in rows)
