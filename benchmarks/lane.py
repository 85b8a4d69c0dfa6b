"""A lane of Postgres and a transport in memory that hands wakeups over as SQS events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Condition, Thread
from typing import Any

from benchmarks.catalog import QUEUES, TASKS
from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.adapters.powertools import PowertoolsTelemetry
from runlane.adapters.sqs.envelope import encode_wakeup, parse_wakeup
from runlane.ports.stores import PublishResult, Wakeup
from runlane.runtime import Runlane
from runlane.services.lane import Lane

ENVIRONMENT = "bench"


class MemoryTransport:
    """Keeps the bodies of published wakeups; `take` gives them back in batches, as an event source mapping does."""

    def __init__(self) -> None:
        self.bodies: deque[str] = deque()
        self._changed = Condition()
        self._closed = False

    def serves(self, queue: str) -> bool:
        return True

    def keeps_order(self, queue: str) -> bool:
        return False

    def publish(self, wakeups: Sequence[Wakeup]) -> tuple[PublishResult, ...]:
        now = datetime.now(UTC)
        with self._changed:
            self.bodies += [encode_wakeup(ENVIRONMENT, wakeup, now) for wakeup in wakeups]
            self._changed.notify_all()
        return tuple(PublishResult(wakeup.run_id, published=True, hint=wakeup.hint) for wakeup in wakeups)

    def take(self, limit: int) -> list[str]:
        """Up to `limit` bodies; waits for the first, and is empty once the transport is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.bodies or self._closed)
            return [self.bodies.popleft() for _ in range(min(limit, len(self.bodies)))] if not self._closed else []

    def open(self) -> None:
        self._closed = False

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def make_runlane(dsn: str, transport: Any, *, metrics: bool = False, **options: Any) -> Runlane:
    """A runtime with the telemetry of the worker function; `metrics` as in Lambda, where they are written to stdout."""
    telemetry = PowertoolsTelemetry(environment=ENVIRONMENT, metrics=metrics)
    lane = Lane(PostgresStorage(dsn), transport, parse_wakeup)
    return Runlane(lane=lane, queues=QUEUES, tasks=TASKS, environment=ENVIRONMENT, telemetry=telemetry, **options)


def sqs_events(bodies: Sequence[str], batch: int) -> list[dict[str, Any]]:
    """Events of Lambda's event source mapping, `batch` records each."""
    return [{"Records": [_record(body) for body in bodies[start : start + batch]]} for start in range(0, len(bodies), batch)]


def _record(body: str) -> dict[str, Any]:
    # By place: a worker that makes events of its own wakeups pays for this in its measured time.
    start = body.index('"runId":"') + 9
    run_id = body[start : start + 36]
    return {
        "messageId": run_id,
        "receiptHandle": "AQEB" + run_id,
        "body": body,
        "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1760000000000", "SenderId": "bench"},
        "messageAttributes": {},
        "md5OfBody": "0" * 32,
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:main",
        "awsRegion": "us-east-1",
    }


@contextmanager
def counted_trips() -> Iterator[Counter[str]]:
    """Counts the statements of every session by name while it is open: each is one round trip and one transaction."""
    counts: Counter[str] = Counter()
    run = Session.run

    def counting(self: Session, name: str, parameters: Any) -> list[Any]:
        counts[name] += 1
        return run(self, name, parameters)

    Session.run = counting  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        Session.run = run  # type: ignore[method-assign]


@contextmanager
def served(runlanes: Iterable[Runlane], transport: MemoryTransport) -> Iterator[None]:
    """Worker invocations on threads of their own, one per runtime, each fed events of up to ten records."""
    threads = [Thread(target=_serve, args=(runlane, transport), daemon=True) for runlane in runlanes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        transport.close()
        for thread in threads:
            thread.join(10)


def _serve(runlane: Runlane, transport: MemoryTransport) -> None:
    while bodies := transport.take(10):
        (event,) = sqs_events(bodies, 10)
        if runlane.deliver_sqs(event)["batchItemFailures"]:
            raise RuntimeError("a delivery failed")
