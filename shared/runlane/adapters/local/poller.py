"""A local stand-in for Lambda's SQS event source mapping with `ReportBatchItemFailures`."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from runlane.adapters.local.batch_answer import failed_message_ids
from runlane.adapters.local.lambda_event import LocalLambdaContext, sqs_event
from runlane.adapters.sqs.receiving import delete, hide, queue_arn, receive
from runlane.domain.backoff import Backoff

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

Handler = Callable[[dict[str, Any], Any], Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventSource:
    """One mapping: a queue, how many messages an event carries at most (1 to 10), how many invocations run at once."""

    queue_url: str
    queue_arn: str
    batch_size: int = 10
    maximum_concurrency: int = 2


def event_source(client: SQSClient, queue_url: str, *, batch_size: int = 10, maximum_concurrency: int = 2) -> EventSource:
    """The mapping of a queue known by its URL; asks SQS for the ARN, so it raises botocore's errors."""
    asked: Any = client
    return EventSource(queue_url, queue_arn(asked, queue_url), batch_size, maximum_concurrency)


class EventSourcePoller:
    """Receives from the queues and calls `handler(event, context)` as Lambda would, on threads of its own.

    Acknowledged messages are deleted; failed ones come back when their visibility times out.
    client: must be thread-safe and answer a long poll of `wait_for`.
    timeout: the function's, as told by the context; a handler is never ended by force.
    wait_for: the long poll, whole seconds up to 20; also how long `stop` waits for idle threads.
    """

    def __init__(
        self,
        client: SQSClient,
        sources: Sequence[EventSource],
        handler: Handler,
        *,
        function_name: str = "worker",
        timeout: timedelta = timedelta(seconds=30),
        wait_for: timedelta = timedelta(seconds=1),
    ) -> None:
        self._client: Any = client
        self._handler = handler
        self._function_name = function_name
        self._timeout = timeout
        self._wait_for = wait_for.total_seconds()
        self._stopping = threading.Event()
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._threads = [
            threading.Thread(target=self._poll, args=(source,), name=f"{function_name}-{number}", daemon=True)
            for source in sources
            for number in range(source.maximum_concurrency)
        ]

    @property
    def counts(self) -> dict[str, int]:
        """So far: `invocations`, `invocation_errors`, `received`, `deleted`, `failed` (messages left in the queue), `receive_errors`."""
        with self._counting:
            return dict(self._counts)

    def start(self) -> EventSourcePoller:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self, timeout: timedelta = timedelta(seconds=30)) -> bool:
        """Start nothing new and wait for the invocations that run; False when some still run after `timeout`."""
        self._stopping.set()
        deadline = time.monotonic() + timeout.total_seconds()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _poll(self, source: EventSource) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                if messages := self._receive(source):
                    self._deliver(source, messages)
            except (BotoCoreError, ClientError) as error:
                self._count(receive_errors=1)
                pause = backoff.next()
                logger.warning("SQS does not answer for %s, next try in %.1f s: %s", source.queue_url, pause, error)
                self._stopping.wait(pause)
            else:
                backoff.reset()

    def _receive(self, source: EventSource) -> Sequence[Mapping[str, Any]]:
        return receive(self._client, source.queue_url, source.batch_size, wait_for=self._wait_for)

    def _deliver(self, source: EventSource, messages: Sequence[Mapping[str, Any]]) -> None:
        if self._stopping.is_set():
            return self._give_back(source, messages)
        failed = self._invoke(source, messages)
        done = [message for message in messages if message["MessageId"] not in failed]
        self._count(received=len(messages), failed=len(messages) - len(done))
        if done:
            self._delete(source, done)
        return None

    def _invoke(self, source: EventSource, messages: Sequence[Mapping[str, Any]]) -> frozenset[str]:
        message_ids = [message["MessageId"] for message in messages]
        context = LocalLambdaContext(self._function_name, self._timeout)
        self._count(invocations=1)
        try:
            answer = self._handler(sqs_event(messages, source.queue_arn), context)
        # SystemExit too: in Lambda it ends the process, which fails the invocation like any error.
        except (Exception, SystemExit):
            self._count(invocation_errors=1)
            logger.exception("%s failed a batch of %d (request %s)", self._function_name, len(messages), context.aws_request_id)
            return frozenset(message_ids)
        return failed_message_ids(answer, message_ids)

    def _delete(self, source: EventSource, messages: Sequence[Mapping[str, Any]]) -> None:
        refused = delete(self._client, source.queue_url, [message["ReceiptHandle"] for message in messages])
        self._count(deleted=len(messages) - len(refused))
        for entry in refused:
            logger.warning("SQS did not delete a message of %s: %s", source.queue_url, entry.get("Message", entry["Code"]))

    def _give_back(self, source: EventSource, messages: Sequence[Mapping[str, Any]]) -> None:
        hide(self._client, source.queue_url, [message["ReceiptHandle"] for message in messages], 0)

    def _count(self, **increments: int) -> None:
        with self._counting:
            self._counts.update(increments)
