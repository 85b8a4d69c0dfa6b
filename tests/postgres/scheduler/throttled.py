"""The same queue with a throttle, as docs/decisions/0004 words it: a clock that starts move, and a plan that dispatch makes ahead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from runlane.domain.ids import RunId
from runlane.domain.queue import Throttle
from tests.postgres.scheduler.model import Partition, Run
from tests.postgres.scheduler.moves import ModelQueue, take

TICK = timedelta(microseconds=1)
FAR = timedelta(seconds=2)


class ThrottledQueue(ModelQueue):
    @property
    def throttle(self) -> Throttle:
        assert self.policy.throttle is not None
        return self.policy.throttle

    @property
    def slack(self) -> timedelta:
        return min(self.throttle.period // (40 * TICK), 250_000) * TICK

    @property
    def step(self) -> timedelta:
        return -(-(self.throttle.period + self.slack) // (self.throttle.limit * TICK)) * TICK

    @property
    def burst(self) -> timedelta:
        return self.throttle.burst * self.step

    @property
    def ahead(self) -> timedelta:
        return FAR if self.policy.total_limit is None else timedelta(0)

    def base(self, partition: Partition) -> datetime:
        return max(partition.clock, self.now - (self.slack if partition.reserved else timedelta(0)))

    def turn(self, partition: Partition) -> datetime:
        """When the next run beyond those reserved may start."""
        return self.base(partition) + partition.reserved * self.step - self.burst

    def available(self, partition: Partition) -> int:
        permitted = (self.now + self.ahead - self.turn(partition)) // self.step + 1
        return max(0, min(super().available(partition), permitted))

    def sleep(self, partition: Partition) -> datetime | None:
        """Until when it leaves the order for its throttle only."""
        is_throttled = super().available(partition) > 0 and self.turn(partition) > self.now + self.ahead
        return self.turn(partition) - self.ahead / 2 if is_throttled else None

    def is_contended(self) -> bool:
        return super().is_contended() or bool(self.rested())

    def rested(self) -> list[Partition]:
        return [one for one in self.partitions.values() if one.sleeps_until and one.sleeps_until <= self.now]

    def wake(self, partitions: Collection[Partition]) -> None:
        super().wake(partitions)
        for one in partitions:
            until = self.sleep(one)
            one.sleeps_until = until and min(until, one.sleeps_until or until)

    def dispatch(self) -> None:
        if self.room() and (rested := self.rested()):
            start, starts = self.start(), {one.address: self.start(one.tenant) for one in rested}
            for one in rested:
                one.vt, one.sleeps_until = max(one.vt, starts[one.address]), self.sleep(one)
                one.is_awake = one.sleeps_until is None
                if one.tenant and not one.tenant.is_awake:
                    one.tenant.is_awake, one.tenant.vt = True, max(one.tenant.vt, start)
        super().dispatch()

    def refresh(self) -> None:
        for partition in self.partitions.values():
            partition.sleeps_until = None
        super().refresh()

    def reserve(self, run: Run) -> None:
        partition = self.partitions[run.address]
        run.start = max(self.now, self.turn(partition))
        super().reserve(run)
        run.until += run.start - self.now
        partition.clock = self.base(partition)
        partition.reserved += 1
        partition.sleeps_until = self.sleep(partition)

    def give_back(self, run_ids: Iterable[RunId]) -> list[Run]:
        given_back = super().give_back(run_ids)
        for run in given_back:
            self.partitions[run.address].reserved -= 1
        return given_back

    def claim_oldest(self, limit: int, lease_for: timedelta) -> set[RunId]:
        turns = sorted((run.start, run_id) for run_id, run in self.dispatched.items() if run.start and run.start <= self.now)
        return self.lease([run_id for _, run_id in turns][:limit], lease_for)

    def lease(self, run_ids: list[RunId], lease_for: timedelta, *, is_first: bool = False) -> set[RunId]:
        """Those whose time has come start, as many as the clock permits; the late get another turn, or go back if that is far."""
        judged = defaultdict[Partition, list[Run]](list)
        for run in self.dispatched.values():
            if run.run_id in run_ids and run.start and run.start <= self.now:
                judged[self.partitions[run.address]].append(run)
        started, far = list[Run](), list[Run]()
        for partition, runs in judged.items():
            runs.sort(key=lambda run: run.start or self.now)
            clock = max(partition.clock, self.now - self.slack)
            count = max(0, min(len(runs), (self.now + self.burst - clock) // self.step + 1))
            started += runs[:count]
            if count:
                partition.clock, partition.reserved = clock + count * self.step, partition.reserved - count
            for place, run in enumerate(runs[count:], count):
                turn = clock + place * self.step - self.burst
                if turn > self.now + FAR:
                    far.append(run)
                else:
                    run.until += turn - (run.start or turn)
                    run.start = turn
        for run in take(self.dispatched, [run.run_id for run in started]):
            run.until, run.start, self.leased[run.run_id] = self.now + lease_for, None, run
        if far and is_first:
            self.grant(self.enter(self.give_back([run.run_id for run in far])))
        if run_ids:
            self.dispatch()
        return {run.run_id for run in started}
