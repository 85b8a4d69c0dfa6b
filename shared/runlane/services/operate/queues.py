"""Registered queues: their counters, pauses, weights and policies."""

from __future__ import annotations

from runlane.domain.ids import validate_key
from runlane.domain.queue import Queue
from runlane.domain.records import QueueStats
from runlane.domain.registry import QueueRegistry
from runlane.domain.shown import shown
from runlane.ports.stores import QueueStore
from runlane.services.operate.arguments import checked_key, invalid, queue_name
from runlane.services.publish import Publisher

LARGEST_WEIGHT = 1_000_000


class Queues:
    """Registered queues, by name or as the `Queue` itself."""

    def __init__(self, store: QueueStore, publisher: Publisher, queues: QueueRegistry) -> None:
        self._store = store
        self._publisher = publisher
        self._queues = queues

    def stats(self, *queues: Queue | str) -> tuple[QueueStats, ...]:
        """Counters of these queues, of every registered one by default."""
        return self._store.stats([queue_name(self._queues, queue) for queue in queues or tuple(self._queues)])

    def pause(self, queue: Queue | str, *, tenant: str | None = None, concurrency_key: str | None = None, actor: str | None = None) -> int:
        """Start nothing more of a queue, a tenant or a key; running runs go on. The number of dispatches given back."""
        name = queue_name(self._queues, queue)
        given_back, wakeups = self._store.pause(
            name,
            tenant=checked_key(tenant, "tenant"),
            concurrency_key=checked_key(concurrency_key, "concurrency_key"),
            actor=checked_key(actor, "actor"),
        )
        self._publisher.publish(wakeups)
        return given_back

    def resume(self, queue: Queue | str, *, tenant: str | None = None, concurrency_key: str | None = None, actor: str | None = None) -> int:
        """Undo the same pause and send on their way what has capacity. The number of wakeups sent."""
        name = queue_name(self._queues, queue)
        wakeups = self._store.resume(
            name,
            tenant=checked_key(tenant, "tenant"),
            concurrency_key=checked_key(concurrency_key, "concurrency_key"),
            actor=checked_key(actor, "actor"),
        )
        return self._publisher.publish(wakeups)

    def put_in_force(self, *, actor: str | None = None) -> tuple[str, ...]:
        """Store the registered policies as those that dispatch obeys, and give out what raised limits free; the names that changed."""
        changed, wakeups = self._store.write_policies(tuple(self._queues), actor=checked_key(actor, "actor"))
        self._publisher.publish(wakeups)
        return changed

    def set_weight(self, queue: Queue | str, tenant: str, weight: int) -> None:
        """A tenant's share beside the others of the queue, 1 by default: a whole number of at least 1."""
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= LARGEST_WEIGHT:
            raise invalid("weight", f"{shown(weight)} is no whole number from 1 to {LARGEST_WEIGHT}")
        self._store.set_weight(queue_name(self._queues, queue), validate_key(tenant, "tenant"), weight)
