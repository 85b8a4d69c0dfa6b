"""The tasks of a runtime, checked against its queues and its transport before anything is published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction

from runlane.domain.errors import ConfigurationError
from runlane.domain.queue import Queue
from runlane.domain.registry import QueueRegistry
from runlane.domain.shown import shown
from runlane.domain.task import Task
from runlane.ports.transport import Transport
from runlane.services.attempt import Middleware
from runlane.services.payload import AnyTask


def catalog(
    tasks: Iterable[AnyTask], queues: QueueRegistry, transport: Transport | None, middleware: Sequence[Middleware]
) -> Mapping[str, AnyTask]:
    """Tasks by id; one `ConfigurationError` with every fault."""
    listed = tuple(tasks)
    known = [task for task in listed if isinstance(task, Task)]
    ConfigurationError.raise_if(
        [
            *(
                f"tasks: {shown(stranger)} is not a task; decorate the handler with @task(…)"
                for stranger in listed
                if not isinstance(stranger, Task)
            ),
            *_id_faults(known),
            *_queue_faults(known, queues),
            *(f"queue {queue.name!r} has no binding in the transport; bind it" for queue in _unbound(queues, transport)),
            *_middleware_faults(known, middleware),
        ]
    )
    return {task.id: task for task in known}


def _unbound(queues: QueueRegistry, transport: Transport | None) -> Iterator[Queue]:
    if transport is not None:
        yield from (queue for queue in queues if not transport.serves(queue.name))


def _id_faults(tasks: Sequence[AnyTask]) -> Iterator[str]:
    for task_id, count in Counter(task.id for task in tasks).items():
        if count > 1:
            yield f"task {task_id!r} is registered {count} times; ids are unique"


def _queue_faults(tasks: Sequence[AnyTask], queues: QueueRegistry) -> Iterator[str]:
    for task in tasks:
        if task.options.queue is None:
            continue
        try:
            queues.require(task.options.queue)
        except ConfigurationError as error:
            yield from (f"task {task.id!r}: {fault}" for fault in error.faults)


def _middleware_faults(tasks: Sequence[AnyTask], middleware: Sequence[Middleware]) -> Iterator[str]:
    plain = [task.id for task in tasks if not task.is_async]
    for wrap in middleware:
        if not callable(wrap):
            yield f"middleware: {shown(wrap)} is not callable"
        elif plain and iscoroutinefunction(wrap):
            yield f"middleware: {wrap.__name__!r} is `async def` and cannot wrap the `def` handlers of {', '.join(plain)}; make it `def`"
