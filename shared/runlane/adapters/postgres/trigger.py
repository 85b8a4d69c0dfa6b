"""Recording runs and sending them on their way."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from runlane.adapters.postgres.connection import Session
from runlane.adapters.postgres.rows import alike_batch, are_alike, encode_alike, encode_runs, id_list, trigger_batch, wakeups
from runlane.ports.stores import NewRun, PublishMark, PublishResult, TriggerBatch, Wakeup

_FOLD_LIMIT = 1000


class PostgresTriggerStore:
    def __init__(self, session: Session) -> None:
        self._session = session

    def trigger_runs(self, runs: Sequence[NewRun], *, eager: bool) -> TriggerBatch:
        if eager and are_alike(runs):
            effects = self._session.run("trigger_alike", encode_alike(runs))
            if effects[0][0] == "alike":
                return alike_batch(effects[0], runs)
        else:
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

    def mark_published(self, marks: Sequence[PublishMark]) -> None:
        dispatched = [mark for mark in marks if not mark.result.hint]
        failed_hints = [mark.result.run_id for mark in marks if mark.result.hint and not mark.result.published]
        if not dispatched and not failed_hints:
            return
        told_at = time.monotonic()

        def parameters() -> dict[str, str]:
            # Until the statement is sent, as after a login: what is claimed meanwhile is not what these speak of.
            late = time.monotonic() - told_at
            return {
                "ids": id_list([mark.result.run_id for mark in dispatched]),
                "statuses": id_list([_publish_status(mark.result) for mark in dispatched]),
                "ages": id_list([f"{mark.age + late:.6f}" for mark in dispatched]),
                "failed_hints": id_list(failed_hints),
            }

        self._session.run("mark_published", parameters)


def _publish_status(result: PublishResult) -> str:
    if result.published:
        return "published"
    return "failed" if result.retryable else "dead_lettered"
