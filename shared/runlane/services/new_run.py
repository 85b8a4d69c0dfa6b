"""From a task, a payload and a call's options to the run that is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from runlane.domain.durations import Duration, parse_duration
from runlane.domain.errors import ConfigurationError, ContractError
from runlane.domain.ids import validate_key
from runlane.domain.moments import to_utc
from runlane.domain.options import ACTIVE, Routing, SingletonMode, TaskOptions, validate_priority
from runlane.domain.queue import Queue
from runlane.domain.registry import QueueRegistry
from runlane.domain.run import Source
from runlane.domain.shown import shown
from runlane.domain.task import Task
from runlane.ports.stores import NewRun
from runlane.services.attempt import DEFAULT_RETRY
from runlane.services.json_faults import json_faults
from runlane.services.options import TriggerOptions, require_options
from runlane.services.payload import AnyTask, PayloadCodec, canonical_hash

if TYPE_CHECKING:
    from runlane.ports.operations import Origin

MAX_META_BYTES = 16 * 1024


class NewRuns:
    """Makes runs of registered tasks; `ContractError`, `PayloadError` or `ConfigurationError` say what is wrong with the call."""

    def __init__(self, queues: QueueRegistry, tasks: Mapping[str, AnyTask], codec: PayloadCodec) -> None:
        self._queues = queues
        self._tasks = tasks
        self._codec = codec
        self._plain: dict[str, tuple[AnyTask, Callable[[Any], NewRun]]] = {}
        """Makers of calls that say nothing but the payload."""

    def make(self, task: AnyTask, payload: Any, options: TriggerOptions) -> NewRun:
        if options or not isinstance(task, Task):
            return self.maker(task, options)(payload)
        maker = self._plain.get(task.id)
        if maker is None or maker[0] is not task:
            maker = self._plain[task.id] = task, self.maker(task, options)
        return maker[1](payload)

    def maker(self, task: AnyTask, options: TriggerOptions) -> Callable[[Any], NewRun]:
        """What makes the runs of one call from their payloads; all that no payload can change is looked at once, here."""
        self._require_task(task)
        require_options(options)
        policy, delay, run_at = _overridden(task, options), options.get("delay"), options.get("run_at")
        common = NewRun(
            task=task.id,
            queue=self._queue(task, options.get("queue")).name,
            payload="",
            delay=None if delay is None else parse_duration(delay, "delay"),
            run_at=None if run_at is None else to_utc(run_at, "run_at"),
            idempotency_ttl=_ttl(options.get("idempotency_ttl"), policy.idempotency_ttl),
            singleton_mode=_mode(task, policy, options),
            max_attempts=(policy.retry or DEFAULT_RETRY).max_attempts,
            start_timeout=policy.start_timeout,
            finish_timeout=policy.finish_timeout,
            actor=None if (actor := options.get("actor")) is None else validate_key(actor, "actor"),
            trace=_carrier(options.get("trace")),
            meta=_jsonable(options.get("meta"), "meta"),
        )
        fixed = None if policy.routes_by_payload else _routing(task, policy, None)

        def made(payload: Any) -> NewRun:
            value, text = self._codec.prepare(task, payload)
            return _routed(common, text, fixed or _routing(task, policy, value))

        return made

    def scheduled(self, task: AnyTask, payload: Any, queue: Queue | None) -> NewRun:
        """What each fire of a schedule makes. A fire is one run by itself, so the task's idempotency key, the same at each, is left out.

        A fire that finds its singleton key taken waits for the end of the active run, and of several that wait the newest stays.
        """
        run = self.make(task, payload, {"queue": queue})
        mode: SingletonMode = "return" if run.singleton_key is None else "latest"
        return run._replace(idempotency_key=None, idempotency_ttl=None, payload_hash=None, singleton_mode=mode, source=Source.SCHEDULE)

    def child(self, origin: Origin, source: Source, *, actor: str | None, reason: str | None) -> NewRun:
        """Another run like this one, under its task's present policy, and without its idempotency key.

        `PayloadError` if the payload does not fit the task any more, `ConfigurationError` or `NotFoundError` if task or queue are gone.
        """
        task = self._tasks.get(origin.task)
        if task is None:
            raise ConfigurationError(
                f"task {origin.task!r} of run {origin.run_id} is not registered; add it to Runlane(tasks=[…])", code="task_unregistered"
            )
        self._codec.decode(task, origin.payload)
        return NewRun(
            task=origin.task,
            queue=self._queues.named(origin.queue).name,
            payload=origin.payload,
            tenant=origin.tenant,
            concurrency_key=origin.concurrency_key,
            priority=origin.priority,
            singleton_key=origin.singleton_key,
            max_attempts=(task.options.retry or DEFAULT_RETRY).max_attempts,
            start_timeout=task.options.start_timeout,
            finish_timeout=task.options.finish_timeout,
            actor=actor,
            meta=origin.meta,
            source=source,
            source_run_id=origin.run_id,
            reason=reason,
        )

    def _require_task(self, task: AnyTask) -> None:
        if not isinstance(task, Task):
            raise ContractError("task_invalid", f"task: {shown(task)} is no task; give what @task(…) made", meta={"field": "task"})
        if self._tasks.get(task.id) is not task:
            raise ConfigurationError(f"task {task.id!r} is not registered; add it to Runlane(tasks=[…])", code="task_unregistered")

    def _queue(self, task: AnyTask, chosen: Queue | str | None) -> Queue:
        named = self._queues.named(chosen) if isinstance(chosen, str) else chosen
        return self._queues.choose(named, task.options.queue)


def _overridden(task: AnyTask, given: TriggerOptions) -> TaskOptions:
    """The task's options with what the call says in their place: a function of the payload whose answer is given is not asked."""
    told: dict[str, Any] = {what: key for what, key in given.items() if what in Routing._fields and key is not None}
    for what, value in told.items():
        if what == "priority":
            validate_priority(value)
        else:
            validate_key(value, what)
    return task.options._replace(**told)


def _routing(task: AnyTask, policy: TaskOptions, payload: Any) -> Routing:
    try:
        return policy.route(payload)
    except ContractError:
        raise
    except Exception as error:  # The task's own functions of the payload, which may trip over this one.
        raise ContractError("option_failed", f"task {task.id!r}: a function of the payload raised {shown(error)}") from error


def _routed(common: NewRun, text: str, routing: Routing) -> NewRun:
    # By place, as a tuple of twenty fields is made for every run of a large call.
    run = NewRun(common.task, common.queue, text, routing.tenant, routing.concurrency_key, routing.priority, *common.shared)
    if routing.idempotency_key is None and routing.singleton_key is None:
        return run
    return run._replace(
        idempotency_key=routing.idempotency_key,
        payload_hash=None if routing.idempotency_key is None else canonical_hash(text),
        singleton_key=routing.singleton_key,
    )


def _mode(task: AnyTask, policy: TaskOptions, options: TriggerOptions) -> SingletonMode:
    mode = options.get("singleton_mode") or "return"
    if mode != "return" and policy.singleton_key is None:
        fault = f"singleton_mode: {mode!r} needs a key; give singleton_key with it, or to task {task.id!r}"
        raise ContractError("option_invalid", fault, meta={"field": "singleton_mode"})
    return mode


def _ttl(given: Duration | None, default: timedelta | None) -> timedelta | None:
    if given is None:
        return default
    return None if given == ACTIVE else parse_duration(given, "idempotency_ttl")


def _carrier(given: Mapping[str, str] | None) -> Mapping[str, Any] | None:
    """A trace carrier: text to text, as it travels in wakeups, whose receivers refuse anything else."""
    plain = _jsonable(given, "trace")
    for name, value in (plain or {}).items():
        if not isinstance(value, str):
            raise ContractError(
                "option_invalid", f"trace.{ascii(name)[1:-1]} is no text; give a str for each name", meta={"field": "trace"}
            )
    return plain


def _jsonable(given: Mapping[str, Any] | None, what: str) -> Mapping[str, Any] | None:
    """A small mapping as it is stored; `ContractError` if JSON in Postgres cannot hold it."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ContractError("option_invalid", f"{what}: {type(given).__name__} is no mapping; give a dict", meta={"field": what})
    try:
        plain: dict[str, Any] = to_jsonable_python(dict(given), inf_nan_mode="constants")
        size = len(to_json(plain))
    except (PydanticSerializationError, TypeError, ValueError) as error:
        raise ContractError("option_invalid", f"{what}: {error}", meta={"field": what}) from None
    if size > MAX_META_BYTES:
        raise ContractError("option_invalid", f"{what}: {size} bytes of JSON, more than {MAX_META_BYTES}", meta={"field": what})
    for fault in json_faults(plain, what):
        raise ContractError("option_invalid", f"{fault['path']} {fault['message']}", meta={"field": what})
    return plain
