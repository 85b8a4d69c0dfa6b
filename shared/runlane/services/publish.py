"""Wakeups out, and their fate into storage. Never fails the work they come from."""

from __future__ import annotations

from collections.abc import Sequence

from runlane.domain.errors import RunlaneError
from runlane.ports.stores import PublishResult, TriggerStore, Wakeup
from runlane.ports.telemetry import Telemetry
from runlane.ports.transport import Transport


class Publisher:
    """Publishes after the commit; what could not be sent, or not be marked, is left to maintenance."""

    def __init__(self, transport: Transport | None, store: TriggerStore, telemetry: Telemetry) -> None:
        self._transport = transport
        self._store = store
        self._telemetry = telemetry

    def publish(self, wakeups: Sequence[Wakeup]) -> int:
        """Send wakeups and mark them; the number sent. Without a transport, those that poll find the runs by themselves."""
        if not wakeups or self._transport is None:
            return 0
        results = self._sent(self._transport, wakeups)
        # A hint that was sent has no row to mark.
        self._mark([result for result in results if not (result.hint and result.published)])
        return sum(result.published for result in results)

    def _sent(self, transport: Transport, wakeups: Sequence[Wakeup]) -> Sequence[PublishResult]:
        try:
            results: Sequence[PublishResult] = transport.publish(wakeups)
        except Exception as error:  # A transport that breaks its promise must not undo a trigger that is committed.
            results = [PublishResult(wakeup.run_id, published=False, error=repr(error), hint=wakeup.hint) for wakeup in wakeups]
        failed = [result for result in results if not result.published]
        if failed:
            self._telemetry.emit("publish.failed", count=len(failed), error=failed[0].error)
        return results

    def _mark(self, results: Sequence[PublishResult]) -> None:
        if not results:
            return
        try:
            self._store.mark_published(results)
        except RunlaneError as error:
            self._telemetry.emit("publish.unmarked", count=len(results), error=error.code)
