"""Wakeups in, outcomes out: the failed message ids are what the transport must deliver again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from runlane.domain.errors import RunlaneError, UnavailableError
from runlane.domain.ids import RunId
from runlane.ports.transport import DeliveryMessage
from runlane.services.batch import Batch
from runlane.services.budget import Remaining, TimeBudget
from runlane.services.message_groups import GroupedRecord, MessageGroups
from runlane.services.stop import Stop
from runlane.services.worker import Worker


class Record(NamedTuple):
    """One message of a batch: what it asks for, or why it cannot be read; from a FIFO queue, the `group` that it is kept in order in."""

    message_id: str
    wakeup: DeliveryMessage | RunlaneError
    group: str | None = None


Acknowledge = Callable[[Sequence[str]], None]
"""Called with the ids of messages that have done what they came for; must not raise."""

FailureObserver = Callable[[str, RunlaneError], None]
"""Called with a message id and the reason when a message is returned to the transport; what it raises is reported and ignored."""


class Delivery:
    """SPEC section 6. Safe to call from several threads; attempts share the process's pool."""

    def __init__(self, worker: Worker, observers: Sequence[FailureObserver] = (), stop: Stop | None = None) -> None:
        self._worker = worker
        self._observers = tuple(observers)
        self._stop = stop

    def deliver(
        self, records: Sequence[Record], remaining: Remaining | None = None, delivered: Acknowledge | None = None
    ) -> tuple[str, ...]:
        """Deliver a batch; the ids of the messages that failed, in order. Everything else is acknowledged.

        `remaining` gives the seconds until the process is stopped from outside; None: nothing stops it. `delivered` is
        told of messages that are acknowledged before the others have ended.
        """
        failures = {record.message_id: record.wakeup for record in records if isinstance(record.wakeup, RunlaneError)}
        wakeups = {record.message_id: record.wakeup for record in records if isinstance(record.wakeup, DeliveryMessage)}
        groups = MessageGroups(_grouped(records))
        if wakeups:
            failures.update(self._executed(wakeups, groups, remaining, delivered))
        for message_id, error in failures.items():
            self._tell(message_id, error)
        if held := groups.returned.difference(failures):
            self._worker.telemetry.emit("delivery.returned", count=len(held))
        return tuple(record.message_id for record in records if record.message_id in failures or record.message_id in held)

    def _executed(
        self, wakeups: dict[str, DeliveryMessage], groups: MessageGroups, remaining: Remaining | None, delivered: Acknowledge | None
    ) -> dict[str, RunlaneError]:
        try:
            self._worker.require_unclogged()
        except UnavailableError as error:
            return dict.fromkeys(wakeups, error)
        queues: dict[RunId, str] = {wakeup.run_id: wakeup.queue for wakeup in wakeups.values()}
        budget = TimeBudget(self._worker.clock, remaining, self._worker.settings.deadline_margin, self._stop)
        told = delivered and partial(_tell_delivered, wakeups, delivered)
        batch = Batch(self._worker, budget, queues, groups=groups, delivered=told)
        batch.run()
        if not batch.failed:
            return {}
        trouble = UnavailableError("delivery_failed", "delivery: storage was out of reach; the message comes again")
        return {message_id: trouble for message_id, wakeup in wakeups.items() if wakeup.run_id in batch.failed}

    def _tell(self, message_id: str, error: RunlaneError) -> None:
        self._worker.telemetry.emit("delivery.failed", message_id=message_id, error=error.code, detail=error.message)
        for observer in self._observers:
            try:
                observer(message_id, error)
            except Exception as failure:  # An observer must not break the batch.
                self._worker.telemetry.emit("observer.failed", error=repr(failure))


def _tell_delivered(wakeups: Mapping[str, DeliveryMessage], acknowledge: Acknowledge, run_ids: Collection[RunId]) -> None:
    if done := [message_id for message_id, wakeup in wakeups.items() if wakeup.run_id in run_ids]:
        acknowledge(done)


def _grouped(records: Sequence[Record]) -> Iterator[GroupedRecord]:
    for record in records:
        if record.group is not None:
            run_id = record.wakeup.run_id if isinstance(record.wakeup, DeliveryMessage) else None
            yield GroupedRecord(record.message_id, record.group, run_id)
