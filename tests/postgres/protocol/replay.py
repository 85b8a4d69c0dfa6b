"""A way through the model, walked on the real SQL: after each step the rows say what the model says."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.queue import Queue
from runlane.ports.stores import ClaimedRun, ExpiredLease, PublishMark, PublishResult
from tests.postgres.factories import LEASE, Lane, settlement
from tests.postgres.protocol.model import Partition, Place, Publication, Rules, Run, Step, grant, steps

ZERO, HOUR = timedelta(0), timedelta(hours=1)
QUEUE = Queue("work", concurrency_limit=1)
RULES = Rules(late_marks=1, publishes=True)
_PUBLICATION = {
    **dict.fromkeys((Publication.HELD, Publication.ORPHAN, Publication.SENT), "claimed"),
    **dict.fromkeys((Publication.MARKED, Publication.LOST), "published"),
    Publication.FAILED: "failed",
}
_ENDS: dict[str, tuple[OutcomeKind, dict[str, Any]]] = {
    "succeed": (OutcomeKind.SUCCEEDED, {}),
    "fail": (OutcomeKind.FAILED, {}),
    "retry": (OutcomeKind.RETRY, {"delay": HOUR}),
    "retry_at_once": (OutcomeKind.RETRY, {"delay": ZERO}),
    "release": (OutcomeKind.RELEASED, {"delay": HOUR}),
    "hand_back": (OutcomeKind.HANDED_BACK, {"delay": ZERO}),
}
_STATE = """
SELECT CASE WHEN o.run_id IS NOT NULL THEN 'outcome' WHEN l.run_id IS NOT NULL THEN 'lease' WHEN d.run_id IS NOT NULL THEN 'dispatch'
            WHEN w.run_id IS NOT NULL THEN 'waiting' WHEN t.run_id IS NOT NULL THEN 'timer' END,
       CASE WHEN l.run_id IS NOT NULL THEN CASE WHEN l.cancel_requested_at IS NULL THEN 'running' ELSE 'cancellation_requested' END
            WHEN t.status = 'queued' THEN 'scheduled' ELSE coalesce(o.status, d.status, w.status, t.status) END,
       coalesce(l.failures, d.failures, w.failures, t.failures), d.publish_status::text, coalesce(l.expires_at <= clock_timestamp(), false)
FROM (SELECT %s::uuid AS run_id) i LEFT JOIN runlane.outcome o USING (run_id) LEFT JOIN runlane.lease l USING (run_id)
LEFT JOIN runlane.dispatch d USING (run_id) LEFT JOIN runlane.waiting w USING (run_id) LEFT JOIN runlane.timer t USING (run_id)
"""


@dataclass
class Replay:
    """One partition of a key of its own, and what its processes have in their memories."""

    lane: Lane
    key: str
    partition: Partition
    ids: dict[int, RunId] = field(default_factory=dict)
    owners: dict[int, ClaimedRun] = field(default_factory=dict)
    stale: defaultdict[int, list[ClaimedRun]] = field(default_factory=lambda: defaultdict(list))
    readers: defaultdict[int, list[ExpiredLease]] = field(default_factory=lambda: defaultdict(list))
    mistaken: defaultdict[int, list[ExpiredLease]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[int, datetime] = field(default_factory=dict)
    late: dict[int, datetime] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        name, before = step.run.name, {run.name: run for run in self.partition.runs}
        after = step.after
        while step.grants and (given := grant(after, RULES)) is not None:
            after = given
        self._act(step.action, name)
        self.partition = after
        for run in after.runs:
            self._remember(before[run.name], run)
            self._compare(step, run)
        if name in self.ids:
            occupied = self.lane.value("SELECT coalesce(max(occupied), 0) FROM runlane.partition WHERE concurrency_key = %s", self.key)
            assert occupied == after.occupied, step

    def _remember(self, before: Run, after: Run) -> None:
        name = after.name
        if before.place is Place.LEASE and after.place is not Place.LEASE:
            if (owner := self.owners.pop(name, None)) is not None and after.stale > before.stale:
                self.stale[name].append(owner)
            self.mistaken[name] += self.readers.pop(name, [])
        if after.late > before.late:
            self.late[name] = self.sent[name]

    def _compare(self, step: Step, run: Run) -> None:
        if run.place is Place.ABSENT:
            return
        row = self.lane.connection.execute(_STATE.encode(), (self.ids[run.name],)).fetchone()
        failures = None if run.place is Place.OUTCOME else run.failures
        publication = _PUBLICATION[run.publication] if run.place is Place.DISPATCH else None
        assert row == (run.place.value, run.status and run.status.value, failures, publication, run.expired), (step, run)

    def _act(self, action: str, name: int) -> None:
        if action in _ENDS:
            kind, fields = _ENDS[action]
            self._refused(self.lane.settle(self._ends(name, kind, **fields)).refused, expected=False)
        elif action.endswith("_and_hand_over"):
            kind, _ = _ENDS[action.removesuffix("_and_hand_over")]
            self._hand_over(self._ends(name, kind))
        else:
            getattr(self, f"_{action}", lambda name: None)(name)

    def _ends(self, name: int, kind: OutcomeKind, **fields: Any) -> Settlement:
        return settlement(self.owners[name], kind, **fields)

    def _refused(self, refused: tuple[RunId, ...], *, expected: bool) -> None:
        assert bool(refused) is expected

    def _hand_over(self, end: Settlement) -> None:
        _, claimed = self.lane.storage.deliveries.settle_and_claim([end], ["work"], limit=1, lease_for=LEASE, worker="w")
        self._own(claimed.claims)

    def _own(self, claims: tuple[ClaimedRun, ...]) -> None:
        (claim,) = claims
        (name,) = (name for name, run_id in self.ids.items() if run_id == claim.run_id)
        self.owners[name] = claim

    def _trigger(self, name: int) -> None:
        self.ids[name] = self.lane.trigger_one("work", concurrency_key=self.key, max_attempts=RULES.max_attempts)

    def _trigger_later(self, name: int) -> None:
        self.ids[name] = self.lane.trigger_one("work", concurrency_key=self.key, max_attempts=RULES.max_attempts, delay=HOUR)

    def _make_due(self, name: int) -> None:
        self.lane.connection.execute("UPDATE runlane.timer SET due_at = clock_timestamp() WHERE run_id = %s", (self.ids[name],))

    def _due_by_tick(self, name: int) -> None:
        self._make_due(name)
        self.lane.storage.maintenance.due_timers(look_ahead=HOUR, limit=100)

    def _due_by_hint(self, name: int) -> None:
        self._make_due(name)
        self.lane.storage.deliveries.forward_runs([self.ids[name]])

    def _claim(self, name: int) -> None:
        self._own(self.lane.claim(self.ids[name]).claims)

    _claim_stray = _claim

    def _send(self, name: int) -> None:
        self.sent[name] = self._now()

    def _now(self) -> datetime:
        now: datetime = self.lane.value("SELECT clock_timestamp()")
        return now

    def _write_mark(self, name: int, handed_at: datetime, *, published: bool = True) -> None:
        age = (self._now() - handed_at).total_seconds()
        self.lane.storage.triggers.mark_published([PublishMark(PublishResult(self.ids[name], published=published), age)])

    def _mark(self, name: int) -> None:
        self._write_mark(name, self.sent[name])

    def _refuse_to_send(self, name: int) -> None:
        self._write_mark(name, self._now(), published=False)

    def _mark_late(self, name: int) -> None:
        self._write_mark(name, self.late.pop(name))

    def _publish_again(self, name: int) -> None:
        self.lane.age_publication(self.ids[name])
        woken = self.lane.storage.maintenance.claim_unpublished(limit=100).wakeups
        run_ids = [wakeup.run_id for wakeup in woken]
        assert self.ids[name] in run_ids
        # The model takes one at a time: what else was found is refused by the transport once more.
        others = [PublishMark(PublishResult(run_id, published=False)) for run_id in run_ids if run_id != self.ids[name]]
        self.lane.storage.triggers.mark_published(others)

    def _expire_dispatch(self, name: int) -> None:
        self.lane.age_dispatch(self.ids[name])
        self.lane.storage.maintenance.expire_dispatches(limit=100)

    def _worker_dies(self, name: int) -> None:
        del self.owners[name]

    def _heartbeat(self, name: int) -> None:
        claim = self.owners[name]
        assert self.lane.storage.deliveries.heartbeat({claim.run_id: claim.token}, lease_for=LEASE)

    def _lease_expires(self, name: int) -> None:
        self.lane.age_lease(self.ids[name])

    def _read_expired(self, name: int) -> None:
        (found,) = (x for x in self.lane.storage.maintenance.expired_leases(limit=100) if x.run_id == self.ids[name])
        self.readers[name].append(found)

    def _lost(self, read: ExpiredLease) -> Settlement:
        final = read.failures + 1 >= read.max_attempts
        return Settlement(read.run_id, read.token, OutcomeKind.LEASE_EXPIRED, delay=HOUR, final=final)

    def _recover(self, name: int) -> None:
        self._refused(self.lane.settle(self._lost(self.readers[name].pop())).refused, expected=False)

    def _find_alive(self, name: int) -> None:
        self._refused(self.lane.settle(self._lost(self.readers[name].pop())).refused, expected=True)

    def _recover_too_late(self, name: int) -> None:
        self._refused(self.lane.settle(self._lost(self.mistaken[name].pop())).refused, expected=True)

    def _cancel(self, name: int) -> None:
        self.lane.cancel(self.ids[name])

    def _stray_wakeup(self, name: int) -> None:
        assert not self.lane.claim(self.ids[name]).claims

    def _frozen_worker_settles(self, name: int) -> None:
        self._refused(self.lane.succeed(self.stale[name].pop()).refused, expected=True)

    def _frozen_worker_heartbeats(self, name: int) -> None:
        claim = self.stale[name].pop()
        assert not self.lane.storage.deliveries.heartbeat({claim.run_id: claim.token}, lease_for=LEASE)


def walk(lane: Lane, seed: int, length: int, taken: Counter[tuple[str, str]]) -> None:
    """Two partitions, four runs, so many steps: of those that can be taken mostly those that were taken least."""
    rng = Random(seed)
    sides = [Replay(lane, f"{seed}-{side}", Partition((Run(name=side * 2 + 1), Run(name=side * 2 + 2)))) for side in range(2)]
    for _ in range(length):
        busy, late = (sum(getattr(side.partition, what) for side in sides) for what in ("processes", "late"))
        found = [
            (side, step)
            for side in sides
            for step in steps(side.partition, RULES)
            if busy - side.partition.processes + step.after.processes <= RULES.workers
            and late - side.partition.late + step.after.late <= RULES.late_marks
            and not ("hand_over" in step.action and any(run.place is Place.DISPATCH for other in sides for run in other.partition.runs))
        ]
        side, step = min(found, key=lambda it: (taken[_seen(it[1])] * rng.random(), rng.random()))
        taken[_seen(step)] += 1
        side.take(step)
    for side in sides:
        for run_id in side.ids.values():
            lane.cancel(run_id)
        for claim in side.owners.values():
            lane.settle(settlement(claim))


def _seen(step: Step) -> tuple[str, str]:
    return step.action, f"{step.run.status}"
