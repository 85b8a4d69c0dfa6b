"""Keeps a consumer's messages from others while they are worked on, and deletes each when it has done what it came for.

On a thread of its own, so that an outage of the transport delays no settlement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf
from threading import Condition, Thread

from runlane.domain.errors import RunlaneError
from runlane.ports.clock import Clock
from runlane.ports.source import Message, MessageSource
from runlane.ports.telemetry import Telemetry

KEEPS = 3
"""Times that the visibility is extended before it would run out."""


class Courier:
    """What cannot be deleted or kept comes again, and is refused when its run has ended: nothing is lost by it."""

    def __init__(self, source: MessageSource, hidden_for: float, clock: Clock, telemetry: Telemetry) -> None:
        self._source = source
        self._hidden_for = hidden_for
        self._clock = clock
        self._telemetry = telemetry
        self._held: dict[str, Message] = {}
        self._done: list[Message] = []
        self._changed = Condition()
        self._is_closing = False
        self._thread = Thread(target=self._run, name="runlane-courier", daemon=True)

    @property
    def count(self) -> int:
        """Messages that are being worked on."""
        return len(self._held)

    def start(self) -> None:
        self._thread.start()

    def hold(self, messages: Iterable[Message]) -> None:
        with self._changed:
            self._held.update((message.message_id, message) for message in messages)
            self._changed.notify()

    def acknowledge(self, message_ids: Collection[str]) -> None:
        """Delete these soon."""
        with self._changed:
            self._done += [self._held.pop(message_id) for message_id in message_ids if message_id in self._held]
            self._changed.notify()

    def let_go(self, messages: Iterable[Message]) -> None:
        """They come again when their visibility runs out."""
        with self._changed:
            for message in messages:
                self._held.pop(message.message_id, None)

    def close(self, timeout: float) -> bool:
        """Delete what is done, and end; False if that takes longer than `timeout` seconds."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        keeps_at = inf
        while True:
            with self._changed:
                if self._held and keeps_at == inf:
                    keeps_at = self._clock.monotonic() + self._hidden_for / KEEPS
                left = keeps_at - self._clock.monotonic()
                if not (self._done or self._is_closing or left <= 0):
                    self._changed.wait(None if left == inf else left)
                done, self._done = self._done, []
                is_over = self._is_closing and not done
                kept = list(self._held.values()) if keeps_at <= self._clock.monotonic() else []
            if is_over:
                return
            self._delete(done)
            if keeps_at <= self._clock.monotonic():
                self._keep(kept)
                keeps_at = inf

    def _delete(self, messages: Collection[Message]) -> None:
        try:
            if messages:
                self._source.delete([message.receipt for message in messages])
        except RunlaneError as error:
            self._telemetry.emit("acknowledge.failed", count=len(messages), error=error.code)

    def _keep(self, messages: Collection[Message]) -> None:
        try:
            if messages:
                self._source.hide([message.receipt for message in messages], self._hidden_for)
        except RunlaneError as error:
            self._telemetry.emit("keep.failed", count=len(messages), error=error.code)
