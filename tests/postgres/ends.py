"""Every way in which a run can end, as moves of one storage: each answers the wakeups that its transaction gave out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.ports.stores import ClaimedRun, Wakeup
from tests.postgres.factories import LEASE, PAST, Lane, settlement

End = Callable[[PostgresStorage], tuple[Wakeup, ...]]
Prepare = Callable[[Lane, RunId], End]
HOUR = timedelta(hours=1)


def _settles(kind: OutcomeKind, *, cancelled: bool = False, final: bool = False, expired: bool = False) -> Prepare:
    def prepare(lane: Lane, run_id: RunId) -> End:
        claim = lane.claim_one(run_id)
        if cancelled:
            lane.cancel(run_id)
        if expired:
            lane.age_lease(run_id)
        return lambda storage: storage.deliveries.settle_runs([settlement(claim, kind, final=final)]).wakeups

    return prepare


def _cancel_waiting(lane: Lane, run_id: RunId) -> End:
    return lambda storage: storage.runs.cancel_run(run_id, actor=None, reason=None)[1]


def _cancel_released(lane: Lane, run_id: RunId) -> End:
    lane.settle(settlement(lane.claim_one(run_id), OutcomeKind.RELEASED, delay=HOUR))
    return _cancel_waiting(lane, run_id)


def _passes(kind: str) -> Prepare:
    def prepare(lane: Lane, run_id: RunId) -> End:
        def end(storage: PostgresStorage) -> tuple[Wakeup, ...]:
            _age_deadline(lane, run_id, kind)
            return storage.maintenance.expire_deadlines(limit=10).wakeups

        return end

    return prepare


def _finish_timeout_under_a_lease(lane: Lane, run_id: RunId) -> End:
    claim = lane.claim_one(run_id)
    _age_deadline(lane, run_id, "finish")
    lane.storage.maintenance.expire_deadlines(limit=10)
    return lambda storage: storage.deliveries.settle_runs([settlement(claim)]).wakeups


def _age_deadline(lane: Lane, run_id: RunId, kind: str) -> None:
    lane.connection.execute(f"UPDATE runlane.deadline SET at = {PAST} WHERE run_id = %s AND kind = %s".encode(), (run_id, kind))


def _hands_over(lane: Lane, run_id: RunId) -> End:
    """The turn of a lone attempt: settled together with the next claim."""
    claim = lane.claim_one(run_id)

    def end(storage: PostgresStorage) -> tuple[Wakeup, ...]:
        batch, claimed = storage.deliveries.settle_and_claim([settlement(claim)], ["work"], limit=1, lease_for=LEASE, worker="w")
        assert len(batch.settled) == 1
        storage.deliveries.settle_runs([settlement(again, OutcomeKind.HANDED_BACK, delay=timedelta(0)) for again in claimed.claims])
        return (*claimed.wakeups, *(Wakeup(again.run_id, again.queue) for again in claimed.claims))

    return end


ENDS: dict[str, Prepare] = {
    "succeeds": _settles(OutcomeKind.SUCCEEDED),
    "fails": _settles(OutcomeKind.FAILED),
    "is cancelled while it waits": _cancel_waiting,
    "is cancelled while released": _cancel_released,
    "is cancelled while it runs": _settles(OutcomeKind.SUCCEEDED, cancelled=True),
    "is cancelled and fails": _settles(OutcomeKind.FAILED, cancelled=True),
    "is cancelled and handed back": _settles(OutcomeKind.HANDED_BACK, cancelled=True),
    "misses its start": _passes("start"),
    "misses its finish while it waits": _passes("finish"),
    "misses its finish while it runs": _finish_timeout_under_a_lease,
    "loses its lease for the last time": _settles(OutcomeKind.LEASE_EXPIRED, final=True, expired=True),
    "loses its lease when cancelled": _settles(OutcomeKind.LEASE_EXPIRED, cancelled=True, expired=True),
    "hands its slot over": _hands_over,
}


def claimed(lane: Lane, wakeups: tuple[Wakeup, ...]) -> list[ClaimedRun]:
    return list(lane.claim(*(wakeup.run_id for wakeup in wakeups)).claims)
