"""New runs: options resolved, everything validated, recorded in one transaction, sent on their way after the commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Unpack

from runlane.domain.errors import ContractError, RunlaneError
from runlane.domain.ids import RunId
from runlane.domain.run import Status, TriggerOutcome
from runlane.domain.shown import shown
from runlane.ports.stores import NewRun, RecordedRun, TriggerBatch, TriggerStore
from runlane.ports.telemetry import Telemetry
from runlane.services.connections import require_transaction, require_unbroken
from runlane.services.new_run import NewRuns
from runlane.services.options import TriggerOptions
from runlane.services.payload import AnyTask
from runlane.services.publish import Publisher

MAX_ITEMS = 10_000

Dispatch = Literal["eager", "deferred"]


@dataclass(frozen=True, slots=True)
class TriggeredRun:
    """The run that a trigger led to: a new one, or with `duplicate` and `singleton_active` the one that owns the key."""

    run_id: RunId
    task: str
    queue: str
    """The queue that was asked for."""
    status: Status
    due_at: datetime


@dataclass(frozen=True, slots=True)
class TriggerResult:
    """`payload_matches` tells, with `duplicate`, whether the owner's payload equals this one; else None."""

    run: TriggeredRun
    outcome: TriggerOutcome
    payload_matches: bool | None = None


class Item:
    """One payload of `trigger_many` with options of its own, which win over those of the call."""

    __slots__ = ("options", "payload")

    def __init__(self, payload: Any, **options: Unpack[TriggerOptions]) -> None:
        self.payload = payload
        self.options = options


class Trigger:
    def __init__(self, runs: NewRuns, store: TriggerStore, publisher: Publisher, telemetry: Telemetry) -> None:
        self._runs = runs
        self._store = store
        self._publisher = publisher
        self._telemetry = telemetry

    def trigger(
        self, task: AnyTask, payload: Any, *, dispatch: Dispatch = "eager", connection: Any = None, **options: Unpack[TriggerOptions]
    ) -> TriggerResult:
        return self._record([self._runs.make(task, payload, options)], dispatch, connection)[0]

    def trigger_many(
        self,
        task: AnyTask,
        items: Iterable[Any],
        *,
        dispatch: Dispatch = "eager",
        connection: Any = None,
        **options: Unpack[TriggerOptions],
    ) -> tuple[TriggerResult, ...]:
        if not isinstance(items, Iterable):
            raise ContractError("option_invalid", f"items: {type(items).__name__} cannot be iterated; give a list", meta={"field": "items"})
        listed = list(items)
        if len(listed) > MAX_ITEMS:
            raise ContractError("too_many_items", f"items: {len(listed)}, more than {MAX_ITEMS}; trigger them in parts")
        return self._record(self._all_made(task, listed, options), dispatch, connection) if listed else ()

    def dispatch(self, results: Iterable[TriggerResult]) -> int:
        """Send on their way what a joined transaction recorded, after its commit; the number of wakeups sent."""
        queues = {result.run.queue for result in results}
        return self._publisher.publish(self._store.dispatch(queues)) if queues else 0

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[JoinedTransaction]:
        """Commit the caller's transaction at the end of the block, then dispatch what was triggered in it; roll back if it raises."""
        require_transaction(connection)
        joined = JoinedTransaction(self, connection)
        try:
            yield joined
            require_unbroken(connection)
        except BaseException:
            # A connection that cannot even roll back has lost the transaction; the caller's own error says more.
            with suppress(Exception):
                connection.rollback()
            raise
        connection.commit()
        self._dispatch_after(joined.queues)

    def _all_made(self, task: AnyTask, items: Sequence[Any], options: TriggerOptions) -> list[NewRun]:
        made: list[NewRun] = []
        faults: list[Mapping[str, Any]] = []
        make: Callable[[Any], NewRun] | None = None
        for index, item in enumerate(items):
            try:
                if isinstance(item, Item) and item.options:
                    made.append(self._runs.make(task, item.payload, _merged(options, item.options)))
                else:
                    # Not before some item has to do with these options alone: others may say what they leave out.
                    make = make or self._runs.maker(task, options)
                    made.append(make(item.payload if isinstance(item, Item) else item))
            except RunlaneError as error:
                faults.append({"index": index, "code": error.code, "message": error.message, **error.meta})
        if faults:
            raise _invalid_items(faults)
        return made

    def _record(self, runs: Sequence[NewRun], dispatch: Dispatch, connection: Any) -> tuple[TriggerResult, ...]:
        if dispatch not in ("eager", "deferred"):
            raise ContractError(
                "option_invalid", f'dispatch: {shown(dispatch)} is neither "eager" nor "deferred"', meta={"field": "dispatch"}
            )
        if connection is not None:
            require_transaction(connection)
            return _results(runs, self._store.record_runs(connection, runs).runs)
        batch = self._store.trigger_runs(runs, eager=dispatch == "eager")
        self.send(batch)
        return _results(runs, batch.runs)

    def send(self, batch: TriggerBatch) -> None:
        """After the commit: publish, and dispatch once more what a full window may have passed over."""
        self._publisher.publish(batch.wakeups)
        if batch.starved_queues:
            self._dispatch_after(batch.starved_queues)

    def _dispatch_after(self, queues: Collection[str]) -> None:
        """The runs are committed, so nothing here may fail the caller: what is not dispatched now, maintenance dispatches."""
        if not queues:
            return
        try:
            self._publisher.publish(self._store.dispatch(queues))
        except RunlaneError as error:
            self._telemetry.emit("dispatch.failed", queues=tuple(queues), error=error.code)


class JoinedTransaction:
    """Triggers inside the caller's transaction: the runs exist if and only if it commits."""

    def __init__(self, trigger: Trigger, connection: Any) -> None:
        self._trigger = trigger
        self._connection = connection
        self.queues: set[str] = set()

    def trigger(self, task: AnyTask, payload: Any, **options: Unpack[TriggerOptions]) -> TriggerResult:
        """As `Runlane.trigger`; dispatched after the commit."""
        return self._noted((self._trigger.trigger(task, payload, connection=self._connection, **options),))[0]

    def trigger_many(self, task: AnyTask, items: Iterable[Any], **options: Unpack[TriggerOptions]) -> tuple[TriggerResult, ...]:
        return self._noted(self._trigger.trigger_many(task, items, connection=self._connection, **options))

    def _noted(self, results: tuple[TriggerResult, ...]) -> tuple[TriggerResult, ...]:
        self.queues.update(result.run.queue for result in results)
        return results


def _results(runs: Sequence[NewRun], recorded: Sequence[RecordedRun]) -> tuple[TriggerResult, ...]:
    return tuple(
        TriggerResult(TriggeredRun(one.run_id, run.task, run.queue, one.status, one.due_at), one.outcome, one.payload_matches)
        for run, one in zip(runs, recorded, strict=True)
    )


def _merged(call: TriggerOptions, item: TriggerOptions) -> TriggerOptions:
    merged = call.copy()
    merged.update(item)
    return merged


def _invalid_items(faults: Sequence[Mapping[str, Any]]) -> ContractError:
    shown = "; ".join(f"[{fault['index']}] {fault['message']}" for fault in faults[:5])
    more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
    return ContractError(
        "items_invalid", f"{len(faults)} items cannot be triggered, so none is: {shown}{more}", meta={"items": list(faults)}
    )
