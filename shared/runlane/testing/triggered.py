"""Assert what was triggered, by reading the runs; a failure shows what was triggered instead."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from runlane.domain.durations import Duration, parse_duration
from runlane.domain.queue import Queue
from runlane.domain.records import RunRecord
from runlane.runtime import Runlane
from runlane.services.operate.runs import LARGEST_PAGE
from runlane.services.payload import AnyTask, PayloadCodec
from runlane.testing.difference import differences
from runlane.testing.shown import shown_runs

_ANY: Final = object()
SLACK = timedelta(seconds=1)
"""How far a due time may be from the delay asked for: the trigger's own time is the database's."""


def assert_triggered(
    runlane: Runlane,
    task: AnyTask,
    *,
    payload: Any = _ANY,
    match: Callable[[Any], bool] | None = None,
    count: int | None = None,
    queue: Queue | str | None = None,
    tenant: str | None = None,
    concurrency_key: str | None = None,
    idempotency_key: str | None = None,
    singleton_key: str | None = None,
    priority: int | None = None,
    delay: Duration | None = None,
    meta: Mapping[str, Any] | None = None,
) -> tuple[RunRecord, ...]:
    """The runs of `task` that fit everything given, oldest first; `AssertionError` if there are none, or not `count`.

    payload: equal as JSON, compared after the validation that `trigger` does; a payload that could not be triggered raises `PayloadError`.
    match: called with the payload as the handler gets it.
    count: exactly so many; 0: none. Default: at least one.
    delay: due so long after the trigger, give or take a second; look before the run starts or is made due.
    meta: these entries at least. The rest is compared for equality; None means any.
    Runs are read from the database, so those of an open transaction are not seen. Reads all runs of the task: for test databases.
    """
    __tracebackhide__ = True  # pytest shows the test's line, and not this function's.
    found = tuple(_read(runlane, task))
    wanted = _Wanted(
        task,
        _facts(
            queue=queue.name if isinstance(queue, Queue) else queue,
            tenant=tenant,
            concurrency_key=concurrency_key,
            idempotency_key=idempotency_key,
            singleton_key=singleton_key,
            priority=priority,
            payload=_ANY if payload is _ANY else json.loads(PayloadCodec().encode(task, payload)),
        ),
        match,
        None if delay is None else parse_duration(delay, "delay"),
        meta or {},
    )
    fits = tuple(run for run in found if not any(wanted.misfits(run)))
    if (count is None and fits) or count == len(fits):
        return fits
    raise AssertionError(_complaint(runlane, wanted, found, fits, count))


@dataclass(frozen=True, slots=True)
class _Wanted:
    task: AnyTask
    facts: Mapping[str, Any]
    match: Callable[[Any], bool] | None
    delay: timedelta | None
    meta: Mapping[str, Any]

    def misfits(self, run: RunRecord) -> Iterator[str]:
        """What is other than wanted, a line each."""
        for name, value in self.facts.items():
            yield from differences(name, getattr(run, name), value)
        for name, value in self.meta.items():
            yield from differences(f"meta.{name}", (run.meta or {}).get(name), value)
        if self.delay is not None and abs((waited := run.due_at - run.created_at) - self.delay) > SLACK:
            yield f"delay: {waited.total_seconds():g} s, expected {self.delay.total_seconds():g} s"
        if self.match is not None and not self.match(PayloadCodec().decode(self.task, json.dumps(run.payload))):
            yield f"match: is false for payload {json.dumps(run.payload)}"

    def __str__(self) -> str:
        told = [f"{name}={json.dumps(value)}" for name, value in self.facts.items()]
        told += [f"meta.{name}={json.dumps(value)}" for name, value in self.meta.items()]
        told += [] if self.delay is None else [f"delay={self.delay.total_seconds():g}s"]
        told += [] if self.match is None else ["match=…"]
        return f"{self.task.id} with {', '.join(told)}" if told else self.task.id


def _facts(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not _ANY and (value is not None or name == "payload")}


def _read(runlane: Runlane, task: AnyTask) -> Iterator[RunRecord]:
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = runlane.runs.list(task=task, limit=LARGEST_PAGE, cursor=cursor)
        ids += [run.run_id for run in page.data]
        if (cursor := page.next_cursor) is None:
            return (runlane.runs.get(run_id) for run_id in reversed(ids))


def _complaint(runlane: Runlane, wanted: _Wanted, found: tuple[RunRecord, ...], fits: tuple[RunRecord, ...], count: int | None) -> str:
    amount = "a run" if count is None else "no run" if count == 0 else f"{count} run{'' if count == 1 else 's'}"
    lines = [f"expected {amount} of {wanted}, but {_amount(len(fits))} found"]
    if fits:
        lines += ["found:", *shown_runs([(run, []) for run in fits])]
    others = [(run, list(wanted.misfits(run))) for run in found if run not in fits]
    if others:
        lines += [f"{'others' if fits else 'runs'} of {wanted.task.id}, and what is other than expected:", *shown_runs(others)]
    elsewhere = Counter(run.task for run in runlane.runs.list(limit=LARGEST_PAGE).data if run.task != wanted.task.id)
    lines += [f"also triggered: {', '.join(f'{task} × {number}' for task, number in sorted(elsewhere.items()))}"] if elsewhere else []
    return "\n".join(lines if found or elsewhere else [*lines, "nothing was triggered"])


def _amount(number: int) -> str:
    return {0: "none was", 1: "one was"}.get(number, f"{number} were")
