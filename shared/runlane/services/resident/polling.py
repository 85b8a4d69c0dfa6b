"""A worker that polls: one delivery without an end, woken by a bell where the connection carries one."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from threading import Thread

from runlane.domain.backoff import Backoff
from runlane.domain.errors import RunlaneError
from runlane.ports.bell import Bell
from runlane.services.batch import Batch
from runlane.services.budget import TimeBudget
from runlane.services.resident.poller import Poller
from runlane.services.stop import Stop
from runlane.services.worker import Worker

LISTEN_FOR = 1.0
"""Seconds at a time; how long a listener may outlive its worker."""


class Polling:
    def __init__(self, worker: Worker, poller: Poller, stop: Stop, bell: Bell | None) -> None:
        self._worker = replace(worker, settings=worker.settings._replace(continue_inline_for=inf))
        self._poller = poller
        self._stop = stop
        self._bell = bell
        budget = TimeBudget(worker.clock, None, worker.settings.deadline_margin, stop)
        self._batch = Batch(self._worker, budget, {}, intake=poller)

    def run(self) -> None:
        """Until it is stopped, or dry. Raises what ended it before."""
        if self._bell is not None:
            Thread(target=self._listen, args=(self._bell,), name="runlane-bell", daemon=True).start()
        self._batch.run()
        if self._poller.error is not None:
            raise self._poller.error

    def _listen(self, bell: Bell) -> None:
        backoff = Backoff()
        while not self._stop.is_asked:
            try:
                if not bell.open():
                    self._worker.telemetry.emit("poll.unnotified")
                    return
                # What was dispatched while nobody listened.
                self._ring()
                backoff.reset()
                self._ring_while_listening(bell)
            except RunlaneError as error:
                self._worker.telemetry.emit("bell.failed", error=error.code)
                self._stop.wait(backoff.next())
        bell.close()

    def _ring_while_listening(self, bell: Bell) -> None:
        while not self._stop.is_asked:
            if bell.wait(LISTEN_FOR):
                self._ring()

    def _ring(self) -> None:
        self._poller.ring()
        self._batch.look()
