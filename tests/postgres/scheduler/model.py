"""Who starts next, in plain Python: SPEC 3 and docs/decisions/0001 for one queue, one decision after another and no batches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain, zip_longest

from runlane.domain.ids import RunId
from runlane.domain.queue import Queue

STEP = 1_000_000
HOUR = timedelta(hours=1)
LONG_AGO = datetime.min.replace(tzinfo=UTC)
NEVER = datetime.max.replace(tzinfo=UTC)
Address = tuple[str | None, str | None]
"""Tenant and key of a partition."""


@dataclass(eq=False)
class Run:
    run_id: RunId
    address: Address
    due: datetime
    priority: timedelta = timedelta(0)
    expiries: int = 0
    until: datetime = NEVER
    """When its dispatch row or its lease expires."""
    is_stopping: bool = False
    start: datetime | None = None
    """Its turn, on a throttled queue."""

    @property
    def place(self) -> tuple[datetime, RunId]:
        """In its partition: due time less priority, then age."""
        return self.due - self.priority, self.run_id


@dataclass(eq=False)
class Node:
    """What competes by virtual time: a tenant in its queue, a partition in its tenant."""

    weight: int = 1
    vt: int = 0
    is_awake: bool = False
    is_paused: bool = False
    served: int = 0
    """The virtual time at which one inside was served last."""


@dataclass(eq=False)
class Partition(Node):
    address: Address = (None, None)
    tenant: Node | None = None
    waiting: list[Run] = field(default_factory=list)
    # Of a throttle:
    clock: datetime = LONG_AGO
    reserved: int = 0
    sleeps_until: datetime | None = None


@dataclass(eq=False)
class Scheduler:
    policy: Queue
    now: datetime
    is_paused: bool = False
    served: int = 0
    tenants: dict[str, Node] = field(default_factory=dict)
    partitions: dict[Address, Partition] = field(default_factory=dict)
    dispatched: dict[RunId, Run] = field(default_factory=dict)
    leased: dict[RunId, Run] = field(default_factory=dict)

    def occupied(self, partition: Partition | None = None) -> int:
        held = [*self.dispatched.values(), *self.leased.values()]
        return len(held) if partition is None else sum(run.address == partition.address for run in held)

    def available(self, partition: Partition) -> int:
        """How many of its runs could start now, but for the window and `total_limit`."""
        count, limit = len(partition.waiting), self.policy.concurrency_limit
        if not count or partition.is_paused or (partition.tenant is not None and partition.tenant.is_paused):
            return 0
        return count if limit is None else max(0, min(count, limit - self.occupied(partition)))

    def room(self) -> int:
        window, total = self.policy.dispatch_window - len(self.dispatched), self.policy.total_limit
        return 0 if self.is_paused else max(0, window if total is None else min(window, total - self.occupied()))

    def awake(self, tenant: Node | None = None) -> list[Node]:
        """Those who compete in the queue, or in a tenant; of two with one virtual time the first goes first."""
        tenants = [] if tenant else [one for one in self.tenants.values() if one.is_awake]
        return [*(one for one in self.partitions.values() if one.is_awake and one.tenant is tenant), *tenants]

    def is_contended(self) -> bool:
        return bool(self.awake())

    def start(self, tenant: Node | None = None) -> int:
        """Where a newcomer starts: no credit for having slept, no penalty."""
        return min((node.vt for node in self.awake(tenant)), default=(tenant or self).served)

    def wake(self, partitions: Collection[Partition]) -> None:
        """Bring up to date who competes, after runs came, slots were freed, or limits and pauses changed."""
        start, starts = self.start(), {one.address: self.start(one.tenant) for one in partitions}
        for partition in partitions:
            was_awake, partition.is_awake = partition.is_awake, self.available(partition) > 0
            if partition.is_awake and not was_awake:
                partition.vt = max(partition.vt, starts[partition.address])
                if partition.tenant and not partition.tenant.is_awake:
                    partition.tenant.is_awake, partition.tenant.vt = True, max(partition.tenant.vt, start)

    def dispatch(self) -> None:
        """Give the room out, a run at a time, to the least virtual time among tenants, then among the tenant's partitions."""
        while self.room() and (nodes := self.awake()):
            top = min(nodes, key=lambda node: node.vt)
            partition = top if isinstance(top, Partition) else min(self.awake(top), key=lambda node: node.vt, default=None)
            if isinstance(partition, Partition):
                self.reserve(partition.waiting[0])
                partition.is_awake = self.available(partition) > 0
                if partition is not top:
                    top.served = max(top.served, partition.vt)
                    partition.vt += STEP
                top.vt += STEP // top.weight
                self.served = max(self.served, top.vt)
            if partition is not top:
                top.is_awake = bool(self.awake(top))

    def grant(self, touched: Collection[Partition]) -> None:
        """Where nobody competes the slots of partitions go to their own runs in turn, at no charge; else all go through the order."""
        asking = [one for one in touched if one.waiting]
        shares = {one.address: self.available(one) for one in asking}
        if self.policy.total_limit is None and not self.is_contended() and all(shares.values()) and sum(shares.values()) <= self.room():
            turns = zip_longest(*(one.waiting[: shares[one.address]] for one in self.in_order(asking)))
            for run in list(chain.from_iterable(turns)):
                if run:
                    self.reserve(run)
        else:
            self.wake(touched)
            self.dispatch()

    def in_order(self, partitions: Collection[Partition]) -> list[Partition]:
        """Those without a tenant first, then of older tenants."""
        tenants = list(self.tenants)
        found = [one for one in self.partitions.values() if one in partitions]
        return sorted(found, key=lambda one: -1 if one.address[0] is None else tenants.index(one.address[0]))

    def reserve(self, run: Run) -> None:
        if run.address in self.partitions and run in self.partitions[run.address].waiting:
            self.partitions[run.address].waiting.remove(run)
        timeout = self.policy.dispatch_timeout or HOUR
        run.until = self.now + min(timeout * 2 ** min(run.expiries, 10), max(timeout, HOUR))
        self.dispatched[run.run_id] = run
