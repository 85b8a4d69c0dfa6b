"""Policies in force, pause, weights, counters."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.rows import decode_json, wakeups
from runlane.domain.queue import Queue
from runlane.domain.records import QueueStats
from runlane.ports.stores import Wakeup

UNLIMITED_DISPATCH_TIMEOUT = timedelta(minutes=5)


class PostgresQueueStore:
    """`lease_for` is the dispatch timeout of bounded queues that name none."""

    def __init__(self, session: Session, *, lease_for: timedelta) -> None:
        self._session = session
        self._lease_for = lease_for

    def read_policies(self) -> dict[str, Queue]:
        return {name: Queue.from_policy(name, decode_json(policy)) for name, policy in self._session.run("read_policies", {})}

    def write_policies(self, queues: Sequence[Queue], *, actor: str | None) -> tuple[tuple[str, ...], tuple[Wakeup, ...]]:
        changed: list[str] = []
        sent: list[Wakeup] = []
        for queue in sorted(queues, key=lambda queue: queue.name):
            effects = self._session.run("write_policy", self._policy_parameters(queue, actor))
            changed += [row[4] for row in effects if row[0] == "changed"]
            sent += wakeups(effects)
        return tuple(changed), tuple(sent)

    def stats(self, queues: Collection[str] | None = None) -> tuple[QueueStats, ...]:
        rows = self._session.run("stats", {"queues": None if queues is None else list(queues)})
        return tuple(map(_stats, rows))

    def pause(self, queue: str, *, tenant: str | None, concurrency_key: str | None, actor: str | None) -> tuple[int, tuple[Wakeup, ...]]:
        effects = self._session.run("pause", {"queue": queue, "tenant": tenant, "key": concurrency_key})
        return sum(row[1] for row in effects if row[0] == "given_back"), wakeups(effects)

    def resume(self, queue: str, *, tenant: str | None, concurrency_key: str | None, actor: str | None) -> tuple[Wakeup, ...]:
        return wakeups(self._session.run("resume", {"queue": queue, "tenant": tenant, "key": concurrency_key}))

    def set_weight(self, queue: str, tenant: str, weight: int) -> None:
        self._session.run("set_weight", {"queue": queue, "tenant": tenant, "weight": weight})

    def _policy_parameters(self, queue: Queue, actor: str | None) -> dict[str, Any]:
        timeout = queue.dispatch_timeout or (self._lease_for if queue.is_bounded else UNLIMITED_DISPATCH_TIMEOUT)
        return {
            "name": queue.name,
            "concurrency_limit": queue.concurrency_limit,
            "total_limit": queue.total_limit,
            "dispatch_timeout": timeout,
            "dispatch_window": queue.dispatch_window,
            "throttle_limit": queue.throttle and queue.throttle.limit,
            "throttle_period": queue.throttle and queue.throttle.period,
            "throttle_burst": queue.throttle and queue.throttle.burst,
            "policy": json.dumps(queue.policy()),
            "actor": actor,
        }


def _stats(row: tuple[Any, ...]) -> QueueStats:
    (
        name,
        waiting,
        scheduled,
        due,
        dispatched,
        running,
        oldest,
        partitions,
        blocked,
        paused,
        ready,
        throttled,
        is_full,
        is_paused,
        recorded,
    ) = row
    reasons = {
        "concurrency_limit": blocked,
        "throttled": throttled,
        "paused": paused,
        "total_limit" if is_full else "window": 0 if is_paused else ready,
    }
    return QueueStats(
        queue=name,
        waiting=waiting + scheduled + recorded,
        scheduled=scheduled,
        due=due,
        dispatched=dispatched,
        running=running,
        oldest_due_for=oldest,
        partitions=partitions,
        blocked={reason: count for reason, count in reasons.items() if count},
        paused=is_paused,
    )
