"""A worker that consumes a queue of the transport: it receives as much as there is room for, and delivers each lot beside the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Thread
from typing import Any

from runlane.domain.backoff import Backoff
from runlane.domain.errors import RunlaneError
from runlane.ports.source import Message, MessageSource
from runlane.services.delivery import Acknowledge
from runlane.services.resident.courier import Courier
from runlane.services.resident.vitals import Vitals
from runlane.services.stop import Stop
from runlane.services.worker import Worker

LARGEST_LOT = 10
HELD_LOTS = 10
"""How many wakeups may be held until they are due, in lots of the worker's concurrency: each lot has a thread."""
FULL_PAUSE = 0.02
"""Seconds before looking again for room, while attempts take all of it."""
HIDDEN_LEASES = 2
"""How long others do not see a message, in leases: of a worker that dies it comes again when the lease has expired, and is recovered."""
LONGEST_HIDDEN = 6 * 3600.0
"""Seconds; SQS refuses more than twelve hours."""
FAILED_FOR = 10.0
"""Seconds until a message that failed comes again: soon, but not so soon that an outage of storage uses up its receives."""
LAST_WORDS = 2.0
"""Seconds to delete messages in, after the deliveries have ended."""

DeliverLot = Callable[[Sequence[Mapping[str, Any]], Acknowledge], Collection[str]]
"""Delivers records and tells early which are acknowledged; the ids of those that failed."""


class Consumer:
    """`share`: the part of the process's room that this queue may take with one lot. `wait_for`: of the long poll, seconds."""

    def __init__(
        self, worker: Worker, source: MessageSource, deliver: DeliverLot, stop: Stop, vitals: Vitals, *, share: int, wait_for: float
    ) -> None:
        self._worker = worker
        self._source = source
        self._deliver = deliver
        self._stop = stop
        self._vitals = vitals
        self._share = max(1, min(share, LARGEST_LOT))
        self._wait_for = wait_for
        self._hidden_for = min(HIDDEN_LEASES * worker.settings.lease_for.total_seconds(), LONGEST_HIDDEN)
        self._courier = Courier(source, self._hidden_for, worker.clock, worker.telemetry)
        self._lots: list[Thread] = []
        self._silence = Backoff()
        self._trouble = Backoff()
        self._pause = 0.0

    def run(self) -> None:
        """Until it is stopped; then until its deliveries have ended, which the stop makes them do within its grace."""
        self._courier.start()
        try:
            while not self._stop.is_asked:
                self._receive()
            for lot in self._lots:
                lot.join()
        finally:
            self._courier.close(LAST_WORDS)
            self._source.close()

    def _receive(self) -> None:
        room = self._room()
        pause, self._pause = self._pause, 0.0
        if room <= 0 or pause:
            self._stop.wait(pause or FULL_PAUSE)
            return
        try:
            messages = self._source.receive(room, wait_for=self._wait_for, hidden_for=self._hidden_for)
        except RunlaneError as error:
            self._worker.telemetry.emit("receive.failed", error=error.code, detail=error.message)
            self._pause = self._silence.next()
            return
        self._silence.reset()
        self._vitals.note_transport()
        if messages:
            self._begin(messages)

    def _room(self) -> int:
        """What may be received. Wakeups that are held until they are due take no place of those that can start."""
        concurrency, held = self._worker.settings.concurrency, self._worker.early.value
        if held >= HELD_LOTS * concurrency:
            return 0
        return min(self._worker.room, concurrency + held - self._courier.count, self._share)

    def _begin(self, messages: Sequence[Message]) -> None:
        if self._stop.is_asked:
            self._return(messages)
            return
        self._courier.hold(messages)
        lot = Thread(target=self._deliver_lot, args=(messages,), name="runlane-delivery", daemon=True)
        lot.start()
        self._lots = [*(one for one in self._lots if one.is_alive()), lot]

    def _deliver_lot(self, messages: Sequence[Message]) -> None:
        failed: Collection[str] = [message.message_id for message in messages]
        try:
            failed = self._deliver([message.record for message in messages], self._courier.acknowledge)
        except Exception as error:  # The border around one delivery: its messages come again.
            self._worker.telemetry.emit("delivery.broken", error=repr(error))
        self._courier.let_go([message for message in messages if message.message_id in failed])
        self._courier.acknowledge([message.message_id for message in messages if message.message_id not in failed])
        first, behind = _told_apart([message for message in messages if message.message_id in failed])
        self._return(first, min(FAILED_FOR, self._hidden_for))
        self._return(behind)
        self._note(len(failed) < len(messages))

    def _note(self, is_well: bool) -> None:
        """Where every message of a lot fails, storage is out of reach, and receiving more would only use up their receives."""
        if is_well:
            self._trouble.reset()
            self._vitals.note_storage()
        else:
            self._pause = self._trouble.next()

    def _return(self, messages: Sequence[Message], seconds: float = 0) -> None:
        """Let others have these, by default at once."""
        try:
            if messages:
                self._source.hide([message.receipt for message in messages], seconds)
        except RunlaneError as error:
            self._worker.telemetry.emit("return.failed", count=len(messages), error=error.code)


def _told_apart(failed: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Those that failed, and those that stand behind one of them in its message group: it holds them back until it comes again."""
    groups: set[str] = set()
    first: list[Message] = []
    behind: list[Message] = []
    for message in failed:
        (behind if message.group in groups else first).append(message)
        if message.group is not None:
            groups.add(message.group)
    return first, behind
