"""What callers do to the modelled queue, in the words of the SQL's entries: where runs go, before and after the order picks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from runlane.domain.ids import RunId
from runlane.domain.queue import Queue
from tests.postgres.scheduler.model import Address, Node, Partition, Run, Scheduler


@dataclass(eq=False)
class ModelQueue(Scheduler):
    recorded: dict[RunId, Run] = field(default_factory=dict)
    later: dict[RunId, Run] = field(default_factory=dict)

    @property
    def is_bounded(self) -> bool:
        return self.policy.concurrency_limit is not None or self.policy.total_limit is not None

    def waiting(self) -> list[Run]:
        return [run for one in self.partitions.values() for run in one.waiting]

    def trigger(self, runs: list[Run], *, eager: bool = True) -> None:
        due = [run for run in runs if run.due <= self.now]
        self.later |= {run.run_id: run for run in runs if run.due > self.now}
        is_paused = any(one.is_paused for one in [*self.tenants.values(), *self.partitions.values()])
        if not eager:
            self.recorded |= {run.run_id: run for run in due}
        elif due and not self.is_bounded and not self.policy.throttle and not (is_paused or self.awake()) and len(due) <= self.room():
            for run in due:
                self.reserve(run)
        elif due:
            self.ready(due)

    def claim(self, run_ids: Collection[RunId], lease_for: timedelta) -> set[RunId]:
        """Turn wakeups into leases: one without a dispatch row makes its run ready, and takes whom the order picks. Answers the leased."""
        mine = [run_id for run_id in run_ids if run_id in self.dispatched]
        due = [run_id for run_id in run_ids if run_id in self.later and self.later[run_id].due <= self.now]
        there = {run.run_id for run in self.waiting()} | {*self.recorded, *due}
        came = [run_id for run_id in run_ids if run_id in there]
        if came:
            before = set(self.dispatched)
            self.ready([*self.fold(), *take(self.later, due)])
            mine += [run_id for run_id in self.dispatched if run_id not in before][: len(came)]
        return self.lease(mine, lease_for, is_first=len(mine) == len(run_ids) and not came)

    def claim_oldest(self, limit: int, lease_for: timedelta) -> set[RunId]:
        return self.lease(list(self.dispatched)[:limit], lease_for)

    def lease(self, run_ids: list[RunId], lease_for: timedelta, *, is_first: bool = False) -> set[RunId]:
        """Claims that open half of the window fill it. is_first: nothing else was moved before."""
        for run in take(self.dispatched, run_ids):
            run.until, self.leased[run.run_id] = self.now + lease_for, run
        window = self.policy.dispatch_window
        if run_ids and self.room() >= min(window // 2, self.policy.total_limit or window):
            self.dispatch()
        return set(run_ids)

    def settle(self, ends: dict[RunId, timedelta | None], *, keeps_place: bool = False) -> None:
        """End attempts; those with a delay go on after it. What was recorded meanwhile is taken along."""
        touched = {one.address for one in self.enter(self.fold())}
        for run in take(self.leased, ends):
            delay = ends[run.run_id]
            touched |= {run.address} if self.is_bounded else set()
            if delay is None or run.is_stopping:
                continue
            run.due, run.expiries = run.due if keeps_place and not delay else self.now + delay, 0
            if run.due > self.now or not self.is_bounded:
                self.later[run.run_id] = run
            else:
                self.enter([run])
        self.grant([self.partitions[address] for address in touched])

    def refuse(self, run_id: RunId) -> None:
        """A result without its lease frees nothing; the queue of a lease that is there is looked at all the same."""
        if run_id in self.leased:
            self.settle({})

    def fire(self) -> None:
        if due := take(self.later, [run_id for run_id, run in self.later.items() if run.due <= self.now]):
            self.ready(due)

    def expire(self) -> None:
        """Unclaimed runs go back to their old places."""
        if expired := self.give_back([run_id for run_id, run in self.dispatched.items() if run.until <= self.now]):
            for run in expired:
                run.expiries += 1
            self.grant(self.enter(expired))

    def cancel(self, run_id: RunId) -> None:
        if given_back := self.give_back([run_id]):
            self.grant(self.known(given_back))
        elif run_id in self.leased:
            self.leased[run_id].is_stopping = True
        else:
            self.remove(run_id)

    def reschedule(self, run_id: RunId, due: datetime) -> None:
        """To later, giving back what it holds; or to now, which changes nothing for a run that is due."""
        if due > self.now:
            given_back = self.give_back([run_id])
            for run in given_back or self.remove(run_id):
                run.due, run.expiries, self.later[run_id] = due, 0, run
            if given_back:
                self.grant(self.known(given_back))
        elif run_id in self.later or run_id in self.recorded:
            (run,) = self.remove(run_id)
            run.due = self.now
            self.ready([run])

    def pause(self, tenant: str | None, key: str | None) -> None:
        """What is dispatched and not claimed goes back."""
        if key:
            self.make((tenant, key))
        elif tenant:
            self.tenants.setdefault(tenant, Node())
        self.set_paused(tenant, key, True)
        is_all = tenant is None and key is None
        chosen = [run for run in self.dispatched.values() if is_all or (run.address[0] == tenant and key in (None, run.address[1]))]
        self.enter(self.give_back([run.run_id for run in chosen]))
        self.refresh()

    def resume(self, tenant: str | None, key: str | None) -> None:
        self.set_paused(tenant, key, False)
        self.refresh()

    def set_paused(self, tenant: str | None, key: str | None, is_paused: bool) -> None:
        if found := self.partitions.get((tenant, key)) if key else self.tenants.get(tenant) if tenant else self:
            found.is_paused = is_paused

    def set_weight(self, name: str, weight: int) -> None:
        for node in [self.tenants.setdefault(name, Node()), self.partitions.get((None, name))]:
            if node:
                node.weight = weight

    def set_policy(self, policy: Queue) -> None:
        if policy != self.policy:
            self.policy = policy
            if self.is_bounded:
                self.make(*{run.address for run in [*self.dispatched.values(), *self.leased.values()]})
            self.refresh()

    def refresh(self) -> None:
        self.wake(list(self.partitions.values()))
        self.dispatch()

    def ready(self, runs: list[Run]) -> None:
        if runs:
            self.grant(self.enter(runs))
        else:
            self.dispatch()

    def give_back(self, run_ids: Iterable[RunId]) -> list[Run]:
        return take(self.dispatched, run_ids)

    def fold(self, overdue: Iterable[RunId] = ()) -> list[Run]:
        return take(self.recorded, self.recorded) + take(self.later, overdue)

    def enter(self, runs: Collection[Run]) -> list[Partition]:
        """Put runs in the order of their partitions, which are the answer."""
        self.make(*{run.address for run in runs})
        for run in runs:
            self.partitions[run.address].waiting.append(run)
        for partition in self.known(runs):
            partition.waiting.sort(key=lambda run: run.place)
        return self.known(runs)

    def make(self, *addresses: Address) -> None:
        """Partitions and tenants seen for the first time, in the order of their names, nameless ones last."""
        for tenant in sorted({tenant for tenant, _ in addresses if tenant}):
            self.tenants.setdefault(tenant, Node())
        for tenant, key in sorted(addresses, key=lambda address: [(part is None, part) for part in address]):
            weight = self.tenants[key].weight if key in self.tenants and tenant is None else 1
            new = Partition(weight, address=(tenant, key), tenant=self.tenants[tenant] if tenant else None)
            self.partitions.setdefault(new.address, new)

    def known(self, runs: Iterable[Run]) -> list[Partition]:
        return [self.partitions[address] for address in {run.address for run in runs} if address in self.partitions]

    def remove(self, run_id: RunId) -> list[Run]:
        """Take a run that waits out of where it is."""
        for run in self.waiting():
            if run.run_id == run_id:
                partition = self.partitions[run.address]
                partition.waiting.remove(run)
                partition.is_awake = partition.is_awake and bool(partition.waiting)
                return [run]
        return take(self.later, [run_id]) or take(self.recorded, [run_id])


def take(places: dict[RunId, Run], run_ids: Iterable[RunId]) -> list[Run]:
    return [places.pop(run_id) for run_id in list(run_ids) if run_id in places]
