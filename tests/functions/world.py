"""The real handlers on a real Postgres, with a wire instead of SQS that loses, doubles and refuses on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import md5
from typing import Any
from uuid import uuid4

from functions.maintenance.app import handler as maintenance
from functions.worker.app import handler as worker
from runlane.adapters.local.lambda_event import LocalLambdaContext, schedule_event, sqs_event
from runlane.adapters.sqs.envelope import encode_wakeup
from runlane.domain.ids import RunId
from runlane.domain.records import RunRecord
from runlane.domain.run import Status
from runlane.ports.stores import PublishResult, Wakeup
from runlane.runtime import Runlane
from tests.postgres.factories import Lane

ENVIRONMENT = "test"
ARN = "arn:aws:sqs:us-east-1:000000000000:work"


class Wire:
    """A transport that keeps what it is given: `sent`, and apart from it `delayed`, what SQS would hold back for a while.

    `refuses` says of each wakeup whether it fails; `breaks` is raised instead of an answer.
    """

    def __init__(self, ordered: Collection[str] = ()) -> None:
        self.ordered = frozenset(ordered)
        """Queues that are FIFO; their delayed wakeups are in `delayed` like others."""
        self.sent: deque[Wakeup] = deque()
        self.delayed: list[Wakeup] = []
        self.refuses: Callable[[Wakeup], bool] = lambda wakeup: False
        self.breaks: BaseException | None = None

    def publish(self, wakeups: Sequence[Wakeup]) -> tuple[PublishResult, ...]:
        if self.breaks is not None:
            raise self.breaks
        results = [PublishResult(one.run_id, published=not self.refuses(one), error="refused", hint=one.hint) for one in wakeups]
        for one in (one for one, result in zip(wakeups, results, strict=True) if result.published):
            (self.delayed if one.delay >= timedelta(seconds=1) else self.sent).append(one)
        return tuple(results)

    def serves(self, queue: str) -> bool:
        return True

    def keeps_order(self, queue: str) -> bool:
        return queue in self.ordered

    def close(self) -> None:
        return None

    def take(self, count: int | None = None) -> list[Wakeup]:
        return [self.sent.popleft() for _ in range(len(self.sent) if count is None else min(count, len(self.sent)))]


class World:
    def __init__(self, runlane: Runlane, wire: Wire, lane: Lane) -> None:
        self.runlane = runlane
        self.wire = wire
        self.lane = lane
        self.value = lane.value

    def deliver(self, *wakeups: Wakeup | RunId | str, seconds: float = 30.0) -> dict[str, Any]:
        """One invocation of the worker function: wakeups, run ids, or raw bodies."""
        messages = [_message(_body(one)) for one in wakeups]
        return worker(sqs_event(messages, ARN), LocalLambdaContext("worker", timedelta(seconds=seconds)))  # type: ignore[arg-type]

    def deliver_fifo(self, *records: tuple[str, Wakeup | RunId | str], seconds: float = 30.0) -> list[int]:
        """One invocation with records of a FIFO queue, each after its group; the places of those that it returned."""
        messages = [{**_message(_body(one)), "Attributes": {"MessageGroupId": group}} for group, one in records]
        event = sqs_event(messages, f"{ARN}.fifo")  # type: ignore[arg-type]
        answer = worker(event, LocalLambdaContext("worker", timedelta(seconds=seconds)))
        places = {record["messageId"]: place for place, record in enumerate(event["Records"])}
        return [places[failure["itemIdentifier"]] for failure in answer["batchItemFailures"]]

    def deliver_sent(self) -> None:
        """Deliver all that is on the wire, and what comes of it, ten at a time."""
        while self.wire.sent:
            assert self.deliver(*self.wire.take(10)) == {"batchItemFailures": []}

    def tick(self, seconds: float = 60.0) -> dict[str, Any]:
        """One invocation of the maintenance function."""
        return maintenance(schedule_event("tick"), LocalLambdaContext("maintenance", timedelta(seconds=seconds)))

    def get(self, run_id: RunId) -> RunRecord:
        return self.runlane.runs.get(run_id)

    def statuses(self, run_ids: Iterable[RunId]) -> set[Status]:
        return {self.get(run_id).status for run_id in run_ids}

    def make_due(self, run_id: RunId) -> None:
        """Let the time of a retry or a release come, and let its wakeup arrive."""
        self.lane.age_timer(run_id)
        self.deliver(run_id)

    def count(self, table: str) -> int:
        return int(self.value(f"SELECT count(*) FROM runlane.{table}"))


def envelope(run_id: str, environment: str = ENVIRONMENT, queue: str = "main") -> str:
    return encode_wakeup(environment, Wakeup(RunId(run_id), queue), datetime.now(UTC))


def _body(one: Wakeup | RunId | str) -> str:
    if isinstance(one, Wakeup):
        return encode_wakeup(ENVIRONMENT, one, datetime.now(UTC))
    return envelope(one) if len(one) == 36 else one


def _message(body: str) -> dict[str, Any]:
    return {"MessageId": str(uuid4()), "ReceiptHandle": str(uuid4()), "Body": body, "MD5OfBody": md5(body.encode()).hexdigest()}
