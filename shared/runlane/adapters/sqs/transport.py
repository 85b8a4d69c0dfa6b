"""Publishes wakeups to SQS: grouped by queue, in batches, in parallel, every outcome told apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import TypeVar

from runlane.adapters.sqs.addresses import Address, QueueUrls, address_of
from runlane.adapters.sqs.batches import Entry, batches, entry, fifo_entry, lanes
from runlane.adapters.sqs.bindings import SqsBinding, SqsTimers, checked_bindings
from runlane.adapters.sqs.client import PARALLEL_SENDS, ClientFactory, SqsClient, sqs_client
from runlane.adapters.sqs.envelope import encode_wakeup
from runlane.adapters.sqs.faults import CONFIGURATION_INVALID, Fault, classify, unanswered, unbound
from runlane.adapters.sqs.sending import Outage, Outcomes, all_failed, send_batch, send_in_order
from runlane.domain.durations import ZERO
from runlane.domain.ids import validate_name
from runlane.ports.stores import PublishResult, Wakeup

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Groups = dict[Address, list[Entry]]
Sending = Callable[[SqsClient, Outage], Outcomes]


class SqsTransport:
    """SQS queues as the transport.

    `bindings` come from `sqs_queue`, and `timers`, which FIFO queues need, from `sqs_timers`; wrong ones raise
    `ConfigurationError` with every fault. `environment` goes into each wakeup. `client_factory` makes the SQS client (default:
    boto3 at `endpoint_url`, or where boto3's own settings point) and is called at the first publish. Safe to share between
    threads; a forked process makes its own client.
    """

    def __init__(
        self,
        bindings: Sequence[SqsBinding],
        environment: str,
        client_factory: ClientFactory | None = None,
        endpoint_url: str | None = None,
        timers: SqsTimers | None = None,
    ) -> None:
        self._bindings = checked_bindings(bindings, timers)
        self._timers = None if timers is None else address_of(timers)
        self._in_order = frozenset(address_of(binding) for binding in self._bindings.values() if binding.fifo is not None)
        self._environment = validate_name(environment, "environment")
        self._client_factory = client_factory or partial(sqs_client, endpoint_url)
        self._urls = QueueUrls()
        self._lock = Lock()
        self._client: SqsClient | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def serves(self, queue: str) -> bool:
        return queue in self._bindings

    def keeps_order(self, queue: str) -> bool:
        binding = self._bindings.get(queue)
        return binding is not None and binding.fifo is not None

    def publish(self, wakeups: Sequence[Wakeup]) -> tuple[PublishResult, ...]:
        """Send wakeups; results aligned with the input. A failed send is a result, never an exception."""
        if self._process != os.getpid():
            self._start_over()
        outcomes: Outcomes = {}
        groups = self._grouped(wakeups, outcomes)
        if groups:
            self._send(groups, outcomes)
        return tuple(_result(wakeup, outcomes.get(position, unanswered())) for position, wakeup in enumerate(wakeups))

    def close(self) -> None:
        """Close connections and threads; a later publish opens new ones."""
        with self._lock:
            client, pool = self._client, self._pool
            self._client = self._pool = None
        if pool is not None:
            pool.shutdown()
        if client is not None:
            client.close()

    def _start_over(self) -> None:
        """After a fork the pool's threads are not here, the client's sockets are the parent's, and nobody may ever release the lock."""
        self._client = self._pool = None
        self._lock, self._process = Lock(), os.getpid()

    def _grouped(self, wakeups: Sequence[Wakeup], outcomes: Outcomes) -> Groups:
        groups: Groups = {}
        now = datetime.now(UTC)
        for position, wakeup in enumerate(wakeups):
            binding = self._bindings.get(wakeup.queue)
            if binding is None:
                outcomes[position] = unbound(wakeup.queue)
                continue
            address, made = self._entry(position, wakeup, binding, now)
            groups.setdefault(address, []).append(made)
        return groups

    def _entry(self, position: int, wakeup: Wakeup, binding: SqsBinding, now: datetime) -> tuple[Address, Entry]:
        body = encode_wakeup(self._environment, wakeup, now)
        if binding.fifo is None:
            return address_of(binding), entry(position, self._environment, wakeup, body)
        if self._timers is not None and wakeup.delay > ZERO:
            # Whoever receives it there finds its queue bound to FIFO, and publishes it once its run is due and dispatched.
            return self._timers, entry(position, self._environment, wakeup, body)
        return address_of(binding), fifo_entry(position, self._environment, wakeup, body, binding.fifo)

    def _send(self, groups: Groups, outcomes: Outcomes) -> None:
        client = self._connected()
        if isinstance(client, Fault):
            for entries in groups.values():
                outcomes.update(all_failed(entries, client))
            return
        ready = self._addressed(client, groups, outcomes)
        outage = Outage()
        for part in self._each(lambda send: send(client, outage), ready):
            outcomes.update(part)

    def _connected(self) -> SqsClient | Fault:
        try:
            with self._lock:
                if self._client is None:
                    self._client = self._client_factory()
                return self._client
        except ImportError:
            return Fault(CONFIGURATION_INVALID, "publish: boto3 is not installed", retryable=False)
        except Exception as error:  # No region, no credentials: an outcome of the wakeups, whatever the factory raised.
            return classify(error, "publish")

    def _addressed(self, client: SqsClient, groups: Groups, outcomes: Outcomes) -> list[Sending]:
        """What may be sent side by side; wakeups of a queue whose name cannot be resolved get the fault."""
        unknown = [address for address in groups if self._urls.known(address) is None]
        found = dict(zip(unknown, self._each(partial(self._urls.resolve, client), unknown), strict=True))
        ready: list[Sending] = []
        for address, entries in groups.items():
            url = found.get(address) or self._urls.resolve(client, address)
            if isinstance(url, Fault):
                outcomes.update(all_failed(entries, url))
            else:
                ready += self._sendings(url, entries, in_order=address in self._in_order)
        return ready

    def _sendings(self, url: str, entries: list[Entry], *, in_order: bool) -> Iterator[Sending]:
        if in_order:
            for lane in lanes(entries, PARALLEL_SENDS):
                yield partial(send_in_order, url, lane)
        else:
            for batch in batches(entries):
                yield partial(send_batch, url, batch)

    def _each(self, work: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Map, in parallel when there is more than one item; `work` must not raise."""
        if len(items) < 2:
            return [work(item) for item in items]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(PARALLEL_SENDS, thread_name_prefix="runlane-sqs")
            pool = self._pool
        return list(pool.map(work, items))


def _result(wakeup: Wakeup, fault: Fault | None) -> PublishResult:
    if fault is None:
        return PublishResult(wakeup.run_id, published=True, hint=wakeup.hint)
    return PublishResult(wakeup.run_id, published=False, retryable=fault.retryable, error=str(fault), hint=wakeup.hint)
