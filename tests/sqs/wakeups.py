"""Wakeups and bindings for the tests, everything defaulted."""

from __future__ import annotations

import uuid
from typing import Any

from runlane.domain.ids import RunId
from runlane.domain.queue import Queue
from runlane.ports.stores import Wakeup

EMAILS = Queue("emails")
REPORTS = Queue("reports")


def wakeup(queue: str = "emails", **facts: Any) -> Wakeup:
    return Wakeup(**{"run_id": RunId(str(uuid.uuid4())), "queue": queue, **facts})


def wakeups(count: int, queue: str = "emails", **facts: Any) -> list[Wakeup]:
    return [wakeup(queue, **facts) for _ in range(count)]
