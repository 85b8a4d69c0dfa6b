"""A task run here and now, by the pipeline that runs it in production; no queue and no database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import uuid4

from runlane.domain.durations import Duration, parse_duration
from runlane.domain.errors import ContractError
from runlane.domain.ids import RunId, parse_run_id, validate_key
from runlane.domain.queue import Queue
from runlane.domain.task import Task
from runlane.ports.clock import Clock, SystemClock
from runlane.ports.stores import ClaimedRun
from runlane.services.attempt import DEFAULT_RETRY, Middleware, Pipeline
from runlane.services.payload import AnyTask, PayloadCodec
from runlane.testing.here import AttemptHere, execute_here, raise_to_the_test
from runlane.testing.outcome import TaskOutcome, outcome_of, status_after


def run_task(
    task: AnyTask,
    payload: Any,
    *,
    attempt: int = 1,
    failures: int = 0,
    max_attempts: int | None = None,
    cancelled: bool | Callable[[], bool] = False,
    remaining: Duration | None = None,
    queue: Queue | str | None = None,
    tenant: str | None = None,
    concurrency_key: str | None = None,
    run_id: str | None = None,
    trace: Mapping[str, str] | None = None,
    meta: Mapping[str, Any] | None = None,
    middleware: Sequence[Middleware] = (),
    clock: Clock | None = None,
) -> TaskOutcome:
    """Run one attempt of `task` in this thread and tell how it ended; a handler's exception is an outcome, not raised.

    payload: validated as by `trigger`; `PayloadError` says what does not fit. The handler gets it as read back from JSON.
    attempt, failures: what `ctx` says: starts from 1, and failed ones before this.
    max_attempts: default the task's own; with `failures=max_attempts - 1` a failure is the end.
    cancelled: whether the run was asked to stop, or a function that is asked whenever the handler looks.
    remaining: "10s" to the deadline, "0s" for one that has passed; default the task's `max_attempt_duration`, which it never exceeds.
    tenant, concurrency_key, queue: default what the task says of the payload.
    run_id: default a new one. trace, meta: as given to `trigger`.
    middleware: wrapped around the handler, as by `Runlane(middleware=…)`.
    clock: default the system's; a `ManualClock` lets the deadline pass when the test says so.
    Raises `ContractError` for an option that cannot be.
    """
    if not isinstance(task, Task):
        raise ContractError("task_invalid", f"task: {task!r} is no task; give what @task(…) made", meta={"field": "task"})
    codec, clock = PayloadCodec(), clock or SystemClock()
    value, text = codec.prepare(task, payload)
    routing = task.options.route(value)
    chosen = queue or task.options.queue or "default"
    now = datetime.now(UTC)
    claim = ClaimedRun(
        run_id=_run_id(run_id),
        token="",
        task=task.id,
        queue=chosen.name if isinstance(chosen, Queue) else chosen,
        payload=text,
        attempt=_number(attempt, "attempt", 1),
        failures=_number(failures, "failures", 0, attempt - 1),
        max_attempts=_number(
            (task.options.retry or DEFAULT_RETRY).max_attempts if max_attempts is None else max_attempts, "max_attempts", 1
        ),
        tenant=routing.tenant if tenant is None else validate_key(tenant, "tenant"),
        concurrency_key=routing.concurrency_key if concurrency_key is None else validate_key(concurrency_key, "concurrency_key"),
        due_at=now,
        created_at=now,
        claimed_at=now,
        trace=trace,
        meta=meta,
    )
    here = AttemptHere(claim, task, clock, cancelled)
    if remaining is not None:
        here.limit(parse_duration(remaining, "remaining").total_seconds())
    # Jitter from a fixed seed: the same test gets the same delay each time.
    settlement = execute_here(Pipeline(codec, middleware, clock, rng=Random(0)), here)
    raise_to_the_test(here.error)
    return outcome_of(settlement, status_after(settlement, cancellation_requested=here.was_cancelled), here.error)


def _run_id(given: str | None) -> RunId:
    return RunId(str(uuid4())) if given is None else parse_run_id(given)


def _number(value: object, field: str, least: int, most: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        upper = "" if most is None else f" to {most}, as each failure was an attempt before this one"
        raise ContractError("option_invalid", f"{field}: {value!r} is no whole number from {least}{upper}", meta={"field": field})
    return value
