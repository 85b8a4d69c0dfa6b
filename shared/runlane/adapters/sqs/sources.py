"""SQS queues as a long-running consumer receives from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any

from runlane.adapters.sqs.addresses import Address, QueueUrls, address_of
from runlane.adapters.sqs.bindings import SqsBinding, SqsTimers
from runlane.adapters.sqs.client import READ_TIMEOUT, sqs_client
from runlane.adapters.sqs.faults import Fault, Operation, classify
from runlane.adapters.sqs.receiving import LONGEST_WAIT, delete, hide, queue_arn, receive, sqs_record
from runlane.domain.errors import ConfigurationError, UnavailableError
from runlane.ports.source import Message

LARGEST_BATCH = 10

MakeClient = Callable[[float], Any]
"""From the seconds that an answer may take to a boto3 client."""


class SqsSources:
    """`bindings` and `timers` as the transport has them. Called with logical queues: a source for each SQS queue that carries any of
    them, and the timers queue if one of them is FIFO."""

    def __init__(
        self,
        bindings: Sequence[SqsBinding],
        timers: SqsTimers | None = None,
        endpoint_url: str | None = None,
        make_client: MakeClient | None = None,
    ) -> None:
        self._bindings = tuple(bindings)
        self._timers = timers
        self._make_client = make_client or (lambda seconds: sqs_client(endpoint_url, read_timeout=seconds))

    def __call__(self, queues: Collection[str]) -> tuple[SqsSource, ...]:
        bound = [binding for binding in self._bindings if binding.queue.name in queues]
        addresses = [address_of(binding) for binding in bound]
        if self._timers is not None and any(binding.fifo is not None for binding in bound):
            addresses.append(address_of(self._timers))
        return tuple(SqsSource(address, self._make_client) for address in dict.fromkeys(addresses))


class SqsSource:
    """One SQS queue. Receiving has a client of its own, which waits for long polls; the other calls give up soon."""

    def __init__(self, address: Address, make_client: MakeClient) -> None:
        self._address = address
        self._make_client = make_client
        self._urls = QueueUrls()

    def receive(self, limit: int, *, wait_for: float, hidden_for: float) -> Sequence[Message]:
        with _translated("receive"):
            messages = receive(self._receiver, self._url, limit, wait_for=wait_for, hidden_for=hidden_for)
            return [self._read(message) for message in messages]

    def delete(self, receipts: Collection[str]) -> None:
        with _translated("delete"):
            for batch in _batches(receipts):
                if refused := delete(self._keeper, self._url, batch):
                    raise UnavailableError("transport_unavailable", f"delete: SQS refused {len(refused)} entries: {refused[0].get('Code')}")

    def hide(self, receipts: Collection[str], seconds: float) -> None:
        with _translated("hide"):
            for batch in _batches(receipts):
                hide(self._keeper, self._url, batch, seconds)

    def close(self) -> None:
        for name in ("_receiver", "_keeper"):
            if (client := self.__dict__.pop(name, None)) is not None:
                client.close()

    @cached_property
    def _receiver(self) -> Any:
        return self._make_client(LONGEST_WAIT + READ_TIMEOUT)

    @cached_property
    def _keeper(self) -> Any:
        return self._make_client(READ_TIMEOUT)

    @cached_property
    def _arn(self) -> str:
        return queue_arn(self._keeper, self._url)

    @property
    def _url(self) -> str:
        url = self._urls.resolve(self._keeper, self._address)
        if isinstance(url, Fault):
            raise UnavailableError(url.code, url.detail)
        return url

    def _read(self, message: Mapping[str, Any]) -> Message:
        record = sqs_record(message, self._arn)
        group = record["attributes"].get("MessageGroupId") if self._arn.endswith(".fifo") else None
        return Message(message["MessageId"], message["ReceiptHandle"], record, group)


@contextmanager
def _translated(operation: Operation) -> Iterator[None]:
    try:
        yield
    except (UnavailableError, ConfigurationError):
        raise
    except Exception as error:  # Whatever the client raised, the queue cannot be used now.
        fault = classify(error, operation)
        raise UnavailableError(fault.code, fault.detail) from error


def _batches(receipts: Collection[str]) -> Iterator[tuple[str, ...]]:
    left = iter(receipts)
    while batch := tuple(islice(left, LARGEST_BATCH)):
        yield batch
