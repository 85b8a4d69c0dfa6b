"""What all deliveries of a process share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from runlane.domain.errors import UnavailableError
from runlane.ports.clock import Clock
from runlane.ports.stores import DeliveryStore
from runlane.ports.telemetry import Telemetry
from runlane.services.attempt import Pipeline
from runlane.services.early import HeldCount
from runlane.services.heartbeat import Heartbeat
from runlane.services.payload import AnyTask
from runlane.services.pool import AttemptPool
from runlane.services.publish import Publisher
from runlane.services.settle import Settler

ExitProcess = Callable[[], Any]
"""Ends the process at once, without unwinding threads: `os._exit`."""


class WorkerSettings(NamedTuple):
    """Durations in seconds but `lease_for`.

    `queues`: those whose oldest dispatch rows an invocation goes on with. `ordered_queues`: those of which it never does, and whose
    wakeups start nothing unless they come in a message group, as their transport keeps deliveries in order.
    """

    name: str
    queues: Collection[str]
    ordered_queues: Collection[str] = frozenset()
    concurrency: int = 10
    lease_for: timedelta = timedelta(seconds=60)
    deadline_margin: float = 5.0
    continue_inline_for: float = 30.0


@dataclass(frozen=True, slots=True)
class Worker:
    """`exit_process` is given where the process is frozen after a delivery (Lambda): an attempt that ignores its deadline
    is settled in the process's last transaction, and the process ends, so that no thread thaws beside the retry.
    Without it (a resident worker) such an attempt keeps its lease and its slot until its thread ends."""

    settings: WorkerSettings
    store: DeliveryStore
    tasks: Mapping[str, AnyTask]
    pipeline: Pipeline
    pool: AttemptPool
    heartbeat: Heartbeat
    settler: Settler
    publisher: Publisher
    clock: Clock
    telemetry: Telemetry
    exit_process: ExitProcess | None = None
    early: HeldCount = field(default_factory=HeldCount)

    @property
    def room(self) -> int:
        """How many more attempts the process may take on, over all its deliveries: none while it cannot keep those that it has."""
        return 0 if self.heartbeat.is_failing else self.settings.concurrency - self.heartbeat.count()

    def require_unclogged(self) -> None:
        """Raise `UnavailableError` `worker_stuck` when nothing could start."""
        if self.pool.is_clogged:
            raise UnavailableError("worker_stuck", "worker: every place is held by an attempt that ignores its deadline")

    def close(self) -> None:
        self.pool.close()
        self.heartbeat.close()
