"""Tasks and a runtime over fakes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pydantic import BaseModel

from runlane.domain.queue import Queue
from runlane.domain.task import task
from runlane.runtime import Runlane
from runlane.services.lane import Lane
from tests.services.fakes import FakeStorage, FakeTelemetry, FakeTransport

main = Queue("main", default=True)


class Order(BaseModel):
    number: int
    note: str | None = None


@task("orders.ship")
def ship(order: Order) -> int:
    return order.number


class Bench:
    """A runtime with everything around it in reach."""

    def __init__(
        self, tasks: Iterable[Any] = (ship,), queues: Iterable[Queue] = (main,), ordered: Collection[str] = (), **settings: Any
    ) -> None:
        self.storage = FakeStorage()
        self.transport = FakeTransport(bound=[queue.name for queue in queues], ordered=ordered)
        self.telemetry = FakeTelemetry()
        self.runlane = Runlane(lane=Lane(self.storage, self.transport), queues=queues, tasks=tasks, telemetry=self.telemetry, **settings)

    @property
    def deliveries(self) -> Any:
        return self.storage.deliveries
