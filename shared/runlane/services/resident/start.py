"""Workers that live on, put together from a runtime's parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runlane.domain.durations import Duration, parse_duration
from runlane.domain.errors import ConfigurationError, ContractError
from runlane.domain.shown import shown
from runlane.services.delivery import Acknowledge, Delivery, FailureObserver, Record
from runlane.services.lane import Lane
from runlane.services.patience import UntilStopped
from runlane.services.pool import AttemptPool
from runlane.services.resident.consumer import Consumer
from runlane.services.resident.poller import Poller
from runlane.services.resident.polling import Polling
from runlane.services.resident.tally import Tally
from runlane.services.resident.vitals import Vitals
from runlane.services.resident.worker import MODES, Mode, ResidentWorker
from runlane.services.settle import Settler
from runlane.services.stop import Stop
from runlane.services.worker import Worker

LONGEST_POLL, SHORTEST_POLL = 20.0, 1.0
"""Seconds; a consumer that is stopped waits for the end of its poll, which is at most half of the grace."""

Parse = Callable[[Mapping[str, Any]], Record]


@dataclass(frozen=True, slots=True)
class ResidentOptions:
    mode: Mode
    queues: Sequence[str]
    concurrency: int
    grace: Duration


def start_worker(base: Worker, lane: Lane, options: ResidentOptions, parse: Parse, observers: Sequence[FailureObserver]) -> ResidentWorker:
    """A running worker with a pool of its own, sharing the leases and connections of `base`."""
    if options.mode not in MODES:
        raise ContractError("option_invalid", f"mode: {shown(options.mode)} is none of {', '.join(MODES)}", meta={"field": "mode"})
    stop, vitals, tally = Stop(base.clock), Vitals(base.clock), Tally(base.telemetry)
    worker = replace(
        base,
        settings=base.settings._replace(queues=_unordered(base, options.queues), concurrency=options.concurrency),
        pool=AttemptPool(base.pipeline, options.concurrency, beside=base.pool),
        settler=Settler(base.store, base.publisher, base.clock, tally, UntilStopped(stop, base.clock)),
        telemetry=tally,
        exit_process=None,
    )
    if options.mode == "sqs":
        parts = [consumer.run for consumer in _consumers(worker, lane, options, Delivering(worker, parse, observers, stop), vitals)]
    else:
        until_dry = options.mode == "drain"
        poller = Poller(worker, lane.storage, stop, vitals, until_dry=until_dry)
        parts = [Polling(worker, poller, stop, None if until_dry else lane.storage.bell(options.queues)).run]
    return ResidentWorker(options.mode, options.queues, worker, parts, stop=stop, tally=tally, vitals=vitals, grace=options.grace)


@dataclass(frozen=True, slots=True)
class Delivering:
    """From records as Lambda shows them to a delivery that the stop brings to its end."""

    worker: Worker
    parse: Parse
    observers: Sequence[FailureObserver]
    stop: Stop

    def __call__(self, records: Sequence[Mapping[str, Any]], acknowledge: Acknowledge) -> Collection[str]:
        delivery = Delivery(self.worker, self.observers, self.stop)
        return delivery.deliver([self.parse(record) for record in records], delivered=acknowledge)


def _unordered(base: Worker, queues: Collection[str]) -> tuple[str, ...]:
    return tuple(queue for queue in queues if queue not in base.settings.ordered_queues)


def _consumers(worker: Worker, lane: Lane, options: ResidentOptions, deliver: Delivering, vitals: Vitals) -> Iterator[Consumer]:
    sources = lane.sources(options.queues) if lane.sources is not None else ()
    if not sources:
        raise ConfigurationError('mode "sqs": the lane has no message sources for these queues; give Lane(…, sources=…), or poll')
    poll_for = min(LONGEST_POLL, max(SHORTEST_POLL, parse_duration(options.grace).total_seconds() / 2))
    for source in sources:
        share = -(-options.concurrency // len(sources))
        # With fewer places than queues each must come up for air, as the others wait for the same places.
        wait_for = poll_for if options.concurrency >= len(sources) else SHORTEST_POLL
        yield Consumer(worker, source, deliver, deliver.stop, vitals, share=share, wait_for=wait_for)
