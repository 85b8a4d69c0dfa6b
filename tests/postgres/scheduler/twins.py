"""The SQL and its model, moved together: after each operation both must have started the same runs, in the same order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import LiteralString, TypeVar

from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.queue import Queue
from runlane.ports.stores import ClaimBatch, ClaimedRun
from tests.postgres.factories import LEASE, Lane, new_run, settlement
from tests.postgres.scheduler.model import Address, Run
from tests.postgres.scheduler.moves import ModelQueue
from tests.postgres.scheduler.throttled import ThrottledQueue

T = TypeVar("T")
QUEUE = "work"
ENDLESS = 1000
"""`max_attempts` that no sequence of moves uses up: the model knows nothing of failures."""
MOMENT = timedelta(milliseconds=1)
AT_ONCE = timedelta(0)
NewItem = tuple[Address, int, timedelta]
"""Where, priority, delay."""
_EMPTY = "; ".join(
    f"DELETE FROM runlane.{table}"
    for table in (
        *("run", "outcome", "event", "inbox", "waiting", "timer", "dispatch", "lease"),
        *("partition", "tenant", "queue_counter", "queue_counter_delta", "policy_change", "queue"),
    )
)
_OVERDUE: LiteralString = """
SELECT t.run_id::text FROM runlane.timer t, runlane.set_clock c WHERE t.hinted_at IS NULL AND t.due_at <= c.at
AND t.due_at >= least(runlane.timer_floor_v1(c.at), c.at - interval '1 minute')
"""
_LOOK: LiteralString = """
WITH later AS (UPDATE runlane.set_clock SET at = %s)
SELECT 'dispatched', NULL, NULL, run_id::text, expires_at, dispatch_seq FROM runlane.dispatch
UNION ALL SELECT 'waiting', p.tenant, p.concurrency_key, w.run_id::text, w.due_at, row_number() OVER (ORDER BY score, run_id)
          FROM runlane.waiting w JOIN runlane.partition p USING (partition_id)
UNION ALL SELECT 'leased', NULL, NULL, run_id::text, expires_at, 0 FROM runlane.lease
UNION ALL SELECT 'later', NULL, NULL, run_id::text, due_at, 0 FROM runlane.timer
UNION ALL SELECT 'recorded', NULL, NULL, run_id::text, NULL, 0 FROM runlane.inbox
UNION ALL SELECT 'occupied', tenant, concurrency_key, NULL, NULL, occupied FROM runlane.partition WHERE occupied > 0
UNION ALL SELECT 'start', NULL, NULL, run_id::text, start_at, 0 FROM runlane.dispatch WHERE start_at IS NOT NULL
UNION ALL SELECT 'turn', tenant, concurrency_key, NULL, NULL, vt FROM runlane.partition WHERE state = 'r'
UNION ALL SELECT 'share', name, NULL, NULL, NULL, vt FROM runlane.tenant WHERE ready
ORDER BY 6
"""


@dataclass
class Twins:
    lane: Lane
    model: ModelQueue
    claims: dict[RunId, ClaimedRun] = field(default_factory=dict)
    ended: list[ClaimedRun] = field(default_factory=list)
    made: list[RunId] = field(default_factory=list)

    @classmethod
    def begin(cls, lane: Lane, now: datetime, policy: Queue) -> Twins:
        lane.connection.execute(_EMPTY.encode())
        lane.queues(policy)
        twins = cls(lane, ThrottledQueue(policy, now) if policy.throttle else ModelQueue(policy, now))
        twins.compare()
        return twins

    # Operations. Runs are named by a number, modulo how many there are to choose from.

    def trigger(self, items: Sequence[NewItem], eager: bool) -> None:
        new = [
            new_run(QUEUE, tenant=tenant, concurrency_key=key, priority=priority, delay=delay, max_attempts=ENDLESS)
            for (tenant, key), priority, delay in items
        ]
        made, now = self.lane.trigger(*new, eager=eager).runs, self.model.now
        runs = [
            Run(one.run_id, address, now + delay, timedelta(seconds=priority))
            for one, (address, priority, delay) in zip(made, items, strict=True)
        ]
        self.made += [one.run_id for one in made]
        self.model.trigger(runs, eager=eager)

    def claim(self, chosen: Sequence[int], dispatched: bool) -> None:
        if run_ids := _choose(list(self.model.dispatched) if dispatched else self._active(), chosen):
            self._claimed(self.lane.claim(*run_ids), self.model.claim(run_ids, LEASE))

    def claim_oldest(self, limit: int) -> None:
        batch = self.lane.storage.deliveries.claim_oldest([QUEUE], limit=limit, lease_for=LEASE, worker="w")
        self._claimed(batch, self.model.claim_oldest(limit, LEASE))

    def settle(self, chosen: Sequence[int], delay: timedelta | None) -> None:
        run_ids = _choose(list(self.model.leased), chosen)
        if run_ids:
            self.lane.settle(*(self._end(run_id, delay) for run_id in run_ids))
            self.model.settle(dict.fromkeys(run_ids, delay))

    def hand_back(self, chosen: Sequence[int]) -> None:
        run_ids = _choose(list(self.model.leased), chosen)
        if run_ids:
            self.lane.settle(*(self._end(run_id, AT_ONCE, OutcomeKind.HANDED_BACK) for run_id in run_ids))
            self.model.settle(dict.fromkeys(run_ids, AT_ONCE), keeps_place=True)

    def settle_again(self, chosen: Sequence[int]) -> None:
        for claim in _choose(self.ended, chosen):
            assert self.lane.succeed(claim).refused == (claim.run_id,)
            self.model.refuse(claim.run_id)

    def settle_and_claim(self, chosen: Sequence[int]) -> None:
        for run_id in _choose(list(self.model.leased), chosen):
            end = self._end(run_id, None)
            _, batch = self.lane.storage.deliveries.settle_and_claim([end], [QUEUE], limit=1, lease_for=LEASE, worker="w")
            self.model.settle({run_id: None})
            self._claimed(batch, self.model.claim_oldest(1, LEASE))

    def cancel(self, chosen: Sequence[int]) -> None:
        for run_id in _choose(self._active(), chosen):
            self.lane.cancel(run_id)
            self.model.cancel(run_id)

    def reschedule(self, chosen: Sequence[int], delay: timedelta) -> None:
        for run_id in _choose(self._active(), chosen):
            due = self.model.now + delay
            self.lane.storage.operations.reschedule_run(run_id, due, actor="ann")
            self.model.reschedule(run_id, due)

    def fold(self) -> None:
        # Which timers have their hint is no part of the model.
        overdue = [run_id for (run_id,) in self.lane.connection.execute(_OVERDUE).fetchall()]
        self.lane.storage.triggers.dispatch([QUEUE])
        self.model.ready(self.model.fold(overdue))

    def fire(self) -> None:
        self.lane.storage.maintenance.due_timers(look_ahead=timedelta(minutes=3), limit=1000)
        self.model.fire()

    def expire(self) -> None:
        self.lane.storage.maintenance.expire_dispatches(limit=1000)
        self.model.expire()

    def recover(self) -> None:
        lost = [run.run_id for run in self.model.leased.values() if run.until <= self.model.now]
        if lost:
            self.lane.settle(*(self._end(run_id, AT_ONCE, OutcomeKind.LEASE_EXPIRED) for run_id in lost))
            self.model.settle(dict.fromkeys(lost, AT_ONCE))

    def pause(self, address: Address) -> None:
        self.lane.storage.queues.pause(QUEUE, tenant=address[0], concurrency_key=address[1], actor=None)
        self.model.pause(*address)

    def resume(self, address: Address) -> None:
        self.lane.storage.queues.resume(QUEUE, tenant=address[0], concurrency_key=address[1], actor=None)
        self.model.resume(*address)

    def set_weight(self, name: str, weight: int) -> None:
        self.lane.storage.queues.set_weight(QUEUE, name, weight)
        self.model.set_weight(name, weight)

    def set_policy(self, policy: Queue) -> None:
        self.lane.queues(policy)
        self.model.set_policy(policy)

    def _end(self, run_id: RunId, delay: timedelta | None, kind: OutcomeKind = OutcomeKind.RETRY) -> Settlement:
        claim = self.claims.pop(run_id)
        self.ended.append(claim)
        return settlement(claim) if delay is None else settlement(claim, kind, delay=delay)

    def _claimed(self, batch: ClaimBatch, expected: set[RunId]) -> None:
        self.claims |= {claim.run_id: claim for claim in batch.claims}
        self._same("claimed", {claim.run_id for claim in batch.claims}, expected)

    def _active(self) -> list[RunId]:
        model = self.model
        return [*(run.run_id for run in model.waiting()), *model.dispatched, *model.later, *model.recorded, *model.leased]

    # Comparison.

    def compare(self, after: timedelta = MOMENT) -> None:
        """Both must be in the same state; then time goes on."""
        found, waiting = defaultdict[str, list[tuple[RunId, datetime]]](list), defaultdict[Address, list[tuple[RunId, datetime]]](list)
        counted = defaultdict[str, dict[Address, int]](dict)
        for place, tenant, key, run_id, at, number in self.lane.connection.execute(_LOOK, (self.model.now + after,)):
            if place == "waiting":
                waiting[tenant, key].append((run_id, at))
            elif run_id is None:
                counted[place][tenant, key] = number
            else:
                found[place].append((run_id, at))
        model, partitions = self.model, self.model.partitions.values()
        self._same("dispatched", found["dispatched"], [(run.run_id, run.until) for run in model.dispatched.values()])
        self._same(
            "waiting", dict(waiting), {one.address: [(run.run_id, run.due) for run in one.waiting] for one in partitions if one.waiting}
        )
        self._same("leased", sorted(found["leased"]), sorted((run.run_id, run.until) for run in model.leased.values()))
        self._same("later", sorted(found["later"]), sorted((run.run_id, run.due) for run in model.later.values()))
        self._same("recorded", sorted(run_id for run_id, _ in found["recorded"]), sorted(model.recorded))
        self._same("starts", sorted(found["start"]), sorted((run.run_id, run.start) for run in model.dispatched.values() if run.start))
        self._same("turns", counted["turn"], {one.address: one.vt for one in partitions if one.is_awake})
        self._same("shares", counted["share"], {(name, None): one.vt for name, one in model.tenants.items() if one.is_awake})
        if model.is_bounded:
            self._same("occupied", counted["occupied"], {one.address: held for one in partitions if (held := model.occupied(one))})
        model.now += after

    def _same(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            told = f"{what}\n  SQL:   {found}\n  model: {expected}"
            for number, run_id in enumerate(self.made, 1):
                told = told.replace(repr(run_id), f"run {number}")
            raise AssertionError(told)


def _choose(found: list[T], chosen: Sequence[int]) -> list[T]:
    return list(dict.fromkeys(found[place % len(found)] for place in chosen)) if found else []
