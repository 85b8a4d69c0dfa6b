"""Recording runs and sending them on their way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.rows import encode_runs, trigger_batch, wakeups
from runlane.ports.stores import NewRun, PublishResult, TriggerBatch, Wakeup

_FOLD_LIMIT = 1000


class PostgresTriggerStore:
    def __init__(self, session: Session) -> None:
        self._session = session

    def trigger_runs(self, runs: Sequence[NewRun], *, eager: bool) -> TriggerBatch:
        effects = self._session.run("trigger_runs", {"runs": encode_runs(runs), "eager": eager})
        return trigger_batch(effects, runs, eager=eager)

    def record_runs(self, connection: Any, runs: Sequence[NewRun]) -> TriggerBatch:
        effects = self._session.run_on(connection, "record_runs", {"runs": encode_runs(runs)})
        return trigger_batch(effects, runs, eager=False)

    def dispatch(self, queues: Collection[str]) -> tuple[Wakeup, ...]:
        sent: list[Wakeup] = []
        for queue in sorted(queues):
            again = True
            while again:
                effects = self._session.run("dispatch_recorded", {"queue": queue, "limit": _FOLD_LIMIT})
                again = any(row[0] == "again" for row in effects)
                sent += wakeups(effects)
        return tuple(sent)

    def mark_published(self, results: Sequence[PublishResult]) -> None:
        dispatched = [result for result in results if not result.hint]
        failed_hints = [result.run_id for result in results if result.hint and not result.published]
        if not dispatched and not failed_hints:
            return
        self._session.run(
            "mark_published",
            {
                "ids": [result.run_id for result in dispatched],
                "statuses": [_publish_status(result) for result in dispatched],
                "failed_hints": failed_hints,
            },
        )


def _publish_status(result: PublishResult) -> str:
    if result.published:
        return "published"
    return "failed" if result.retryable else "dead_lettered"
