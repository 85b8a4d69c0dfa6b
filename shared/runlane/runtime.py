"""Runlane: the use cases bound to one lane, one set of queues and one set of tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import cached_property, partial
from math import inf
from os import getpid
from socket import gethostname
from typing import TYPE_CHECKING, Any, Unpack
from uuid import uuid4

from runlane.domain.durations import Duration, parse_duration
from runlane.domain.errors import ConfigurationError, ContractError, RunlaneError
from runlane.domain.ids import RunId, validate_name
from runlane.domain.queue import Queue
from runlane.domain.registry import QueueRegistry
from runlane.domain.retention import DEFAULT_RETENTION, read_retention, retention_faults
from runlane.domain.shown import shown
from runlane.ports.clock import Clock, SystemClock
from runlane.ports.telemetry import Silent, Telemetry
from runlane.services.attempt import Middleware, Pipeline
from runlane.services.budget import Remaining
from runlane.services.catalog import catalog
from runlane.services.delivery import Delivery, FailureObserver, Record
from runlane.services.heartbeat import Heartbeat
from runlane.services.lane import Lane
from runlane.services.message_groups import group_of
from runlane.services.new_run import NewRuns
from runlane.services.payload import AnyTask, PayloadCodec
from runlane.services.pool import AttemptPool
from runlane.services.publish import Publisher
from runlane.services.schedules.catalog import scheduled
from runlane.services.settle import Settler
from runlane.services.worker import ExitProcess, Worker, WorkerSettings

if TYPE_CHECKING:
    from runlane.domain.verification import Verification
    from runlane.services.drift import DriftWatch
    from runlane.services.maintenance import Maintenance, TickReport
    from runlane.services.maintenance.phase import Upkeep
    from runlane.services.operate.children import Children
    from runlane.services.operate.idempotency_keys import IdempotencyKeys
    from runlane.services.operate.queues import Queues
    from runlane.services.operate.runs import Runs
    from runlane.services.operate.schedules import Schedules
    from runlane.services.options import RunNowOptions, TriggerOptions
    from runlane.services.resident.worker import Mode, ResidentWorker
    from runlane.services.run_now import RunNow, RunNowResult
    from runlane.services.trigger import Dispatch, JoinedTransaction, Trigger, TriggerResult

RETURNING_TAKES = 3.0
"""Seconds in which returned messages are shown again, or not; less left, and the answer is more urgent."""
TICK_MARGIN = 5.0
"""Seconds of a tick's time that are kept for the step under way."""
_MADE_WHEN_USED = (
    "runs",
    "queues",
    "schedules",
    "idempotency_keys",
    "_trigger",
    "_drift",
    "_children",
    "_run_now",
    "_upkeep",
    "_maintenance",
)


class Runlane:
    """A runtime of one environment; construction reaches neither storage nor transport.

    Everything that is wrong with queues, tasks, middleware and settings is one `ConfigurationError`.
    `worker_concurrency` (attempts of this process at a time), `lease_duration` (default 60 s), `deadline_margin` (kept
    for settling before the process is stopped, default 5 s, at most a quarter of the time given) and
    `continue_inline_for` (how long a delivery goes on with further runs, default 30 s, "0s" never) are the worker's.
    `retention`: how long ended runs are kept, at least "1d", or "forever"; no shorter than any task's `idempotency_ttl`.
    `worker_queues`: the queues a delivery goes on with (default: all that are not bound to FIFO). `exit_process`: see
    `services.worker.Worker`.
    """

    def __init__(
        self,
        *,
        lane: Lane,
        queues: Iterable[Queue],
        tasks: Iterable[AnyTask] = (),
        environment: str = "production",
        middleware: Sequence[Middleware] = (),
        worker_concurrency: int = 10,
        worker_queues: Collection[Queue | str] | None = None,
        lease_duration: Duration = "60s",
        retention: Duration = DEFAULT_RETENTION,
        deadline_margin: Duration = "5s",
        continue_inline_for: Duration = "30s",
        store_tracebacks: bool = True,
        on_delivery_failure: Sequence[FailureObserver] = (),
        telemetry: Telemetry | None = None,
        clock: Clock | None = None,
        worker_name: str | None = None,
        exit_process: ExitProcess | None = None,
    ) -> None:
        faults: list[str] = []
        self.environment = _checked(faults, validate_name, environment, "environment") or ""
        self.queue_registry = _checked(faults, QueueRegistry, queues) or QueueRegistry(())
        self.tasks: Mapping[str, AnyTask] = _checked(faults, catalog, tasks, self.queue_registry, lane.transport, middleware) or {}
        keep_for = _checked(faults, read_retention, retention)
        faults += retention_faults(keep_for, ((task.id, task.options.idempotency_ttl) for task in self.tasks.values()))
        self._ordered = frozenset(lane.ordered(queue.name for queue in self.queue_registry))
        settings = WorkerSettings(
            name=worker_name or _own_name(),
            queues=_checked(faults, self._names, worker_queues) or (),
            ordered_queues=self._ordered,
            concurrency=_concurrency(worker_concurrency, faults),
            lease_for=parse_duration(_checked(faults, _positive, lease_duration, "lease_duration") or "60s"),
            deadline_margin=_seconds(deadline_margin, "deadline_margin", faults),
            continue_inline_for=_seconds(continue_inline_for, "continue_inline_for", faults),
        )
        codec = PayloadCodec()
        new_runs = NewRuns(self.queue_registry, self.tasks, codec)
        self._schedules = _checked(faults, scheduled, self.tasks.values(), new_runs) or ()
        ConfigurationError.raise_if(faults)
        clock = clock or SystemClock()
        self._wire = partial(
            self._bind,
            settings=settings,
            keep_for=keep_for,
            new_runs=new_runs,
            codec=codec,
            pipeline=Pipeline(codec, middleware, clock, store_tracebacks=store_tracebacks),
            clock=clock,
            telemetry=telemetry or Silent(),
            observers=tuple(on_delivery_failure),
            exit_process=exit_process,
        )
        self._has_own_name = worker_name is None
        self._wire(lane)

    def _bind(
        self,
        lane: Lane,
        *,
        settings: WorkerSettings,
        keep_for: timedelta | None,
        new_runs: NewRuns,
        codec: PayloadCodec,
        pipeline: Pipeline,
        clock: Clock,
        telemetry: Telemetry,
        observers: Sequence[FailureObserver],
        exit_process: ExitProcess | None,
    ) -> None:
        storage = lane.storage
        publisher = Publisher(lane.transport, storage.triggers, clock, telemetry)
        settler = Settler(storage.deliveries, publisher, clock, telemetry)
        self._lane = lane
        self._publisher = publisher
        self._worker = Worker(
            settings=settings,
            store=storage.deliveries,
            tasks=self.tasks,
            pipeline=pipeline,
            pool=AttemptPool(pipeline, settings.concurrency),
            heartbeat=Heartbeat(storage.deliveries, clock, telemetry, lease_for=settings.lease_for),
            settler=settler,
            publisher=publisher,
            clock=clock,
            telemetry=telemetry,
            exit_process=exit_process,
        )
        self._observers = observers
        self._new_runs, self._settler, self._keep_for = new_runs, settler, keep_for
        for name in _MADE_WHEN_USED:
            self.__dict__.pop(name, None)

    # What no delivery needs is imported and made when it is first used: a cold start would pay for it.

    @cached_property
    def runs(self) -> Runs:
        from runlane.services.operate.runs import Runs

        storage, worker = self._lane.storage, self._worker
        return Runs(storage.runs, storage.operations, self._children, worker.publisher, self.queue_registry, worker.clock)

    @cached_property
    def queues(self) -> Queues:
        from runlane.services.operate.queues import Queues

        return Queues(self._lane.storage.queues, self._worker.publisher, self.queue_registry)

    @cached_property
    def schedules(self) -> Schedules:
        from runlane.services.operate.schedules import Schedules

        return Schedules(self._lane.storage.schedules, self._schedules, self._upkeep, self._trigger)

    @cached_property
    def idempotency_keys(self) -> IdempotencyKeys:
        from runlane.services.operate.idempotency_keys import IdempotencyKeys

        return IdempotencyKeys(self._lane.storage.runs)

    @cached_property
    def _trigger(self) -> Trigger:
        from runlane.services.trigger import Trigger

        worker = self._worker
        return Trigger(self._new_runs, self._lane.storage.triggers, worker.publisher, worker.telemetry)

    @cached_property
    def _drift(self) -> DriftWatch:
        from runlane.services.drift import DriftWatch

        storage = self._lane.storage
        return DriftWatch(self.queue_registry, storage.queues, self._schedules, storage.schedules, self._worker.telemetry)

    @cached_property
    def _children(self) -> Children:
        from runlane.services.operate.children import Children

        return Children(self._new_runs, self._lane.storage.operations, self._trigger)

    @cached_property
    def _run_now(self) -> RunNow:
        from runlane.services.run_now import RunNow

        storage = self._lane.storage
        return RunNow(self._worker, self._new_runs, storage.operations, storage.runs, self._trigger)

    @cached_property
    def _upkeep(self) -> Upkeep:
        from runlane.services.maintenance.phase import Upkeep

        storage, worker = self._lane.storage, self._worker
        return Upkeep(storage.maintenance, storage.schedules, worker.publisher, self._settler, self.tasks, worker.telemetry, self._keep_for)

    @cached_property
    def _maintenance(self) -> Maintenance:
        from runlane.services.maintenance import Maintenance

        return Maintenance(self._upkeep, self._worker.clock, self._worker.telemetry)

    def rebind(self, lane: Lane) -> Lane:
        """Go on with another storage and transport; the lane before, which stays open. For tests, while nothing is under way.

        `runs`, `queues`, `schedules` and `idempotency_keys` are new objects afterwards. `ConfigurationError` if the transport serves a
        queue less.
        """
        catalog(self.tasks.values(), self.queue_registry, lane.transport, ())
        before = self._lane
        self._worker.close()
        self._wire(lane)
        return before

    def renew(self) -> None:
        """Go on as a process of its own, with connections and a name of its own, where many were made of one, as by SnapStart."""
        self.close()
        settings = self._worker.settings
        self._wire(self._lane, settings=settings._replace(name=_own_name()) if self._has_own_name else settings)

    @property
    def lane(self) -> Lane:
        """The storage and transport in use."""
        return self._lane

    @property
    def parts(self) -> Worker:
        """What all deliveries of this process share: for those who deliver in a way of their own, as `runlane.testing.drain` does."""
        return self._worker

    def start(self) -> tuple[str, ...]:
        """Compare the code's policies and schedules with those in force; what differs is told once and returned. Never raises for it."""
        return self._drift.look()

    def close(self) -> None:
        """Let idle threads end and close connections; attempts under way cannot settle any more."""
        self._worker.close()
        self._publisher.flush()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connections; whoever needs one next opens another."""
        if self._lane.transport is not None:
            self._lane.transport.close()
        self._lane.storage.close()

    def trigger(
        self, task: AnyTask, payload: Any, *, dispatch: Dispatch = "eager", connection: Any = None, **options: Unpack[TriggerOptions]
    ) -> TriggerResult:
        """Record a run and, unless `dispatch="deferred"`, send it on its way.

        Options: `queue`, `delay` or `run_at`, `priority`, `tenant`, `concurrency_key`, `idempotency_key`,
        `idempotency_ttl`, `singleton_key`, `singleton_mode` ("return", "cancel", "latest"), `actor`, `trace`, `meta`; None
        means what the task says.
        With `connection` (psycopg, not in autocommit) the run is only recorded in its transaction; call `dispatch` after
        the commit, or use `transaction`. Raises `PayloadError`, `ContractError`, `ConfigurationError`, `UnavailableError`.
        """
        return self._trigger.trigger(task, payload, dispatch=dispatch, connection=connection, **options)

    def trigger_many(
        self,
        task: AnyTask,
        items: Iterable[Any],
        *,
        dispatch: Dispatch = "eager",
        connection: Any = None,
        **options: Unpack[TriggerOptions],
    ) -> tuple[TriggerResult, ...]:
        """Record up to 10,000 runs in one transaction; items are payloads, or `Item(payload, **options)`.

        Everything is validated first: one `ContractError` `items_invalid` lists every bad index in `meta["items"]`.
        """
        return self._trigger.trigger_many(task, items, dispatch=dispatch, connection=connection, **options)

    def run_now(self, task: AnyTask, payload: Any, **options: Unpack[RunNowOptions]) -> RunNowResult:
        """Record a run and make its first attempt here and now; what a retry or a release makes of it goes the usual way.

        Options as of `trigger`, without times, `dispatch` and `connection`. Raises `ConflictError` `queue_at_capacity`, `throttled`,
        `paused`, or with a `singleton_mode` `singleton_active`, and nothing is recorded, if a run triggered now would have to wait. The
        attempt has `max_attempt_duration`, if that is set; a handler that ignores it for two seconds is left to itself, and the run is
        still `running` in the answer.
        """
        try:
            return self._run_now.run_now(task, payload, **options)
        finally:
            self._worker.telemetry.flush()

    def transaction(self, connection: Any) -> AbstractContextManager[JoinedTransaction]:
        """`with runlane.transaction(conn) as tx: tx.trigger(…)` commits the caller's transaction, then dispatches and publishes."""
        return self._trigger.transaction(connection)

    def dispatch(self, *results: TriggerResult) -> int:
        """Send on their way runs that were recorded with `connection=` or `dispatch="deferred"`; the number of wakeups sent."""
        return self._trigger.dispatch(results)

    def execute_delivery(self, message: Record | Mapping[str, Any], remaining: Remaining | None = None) -> None:
        """Execute one wakeup. Return means: acknowledge it; an error means: leave it, so that it comes again.

        A handler's exception is the run's business and no error here. Raises `ContractError` for what is no wakeup of this
        environment, `UnavailableError` when storage is out of reach.
        """
        raised: list[RunlaneError] = []
        self._execute([message], remaining, lambda _, error: raised.append(error))
        if raised:
            raise raised[0]

    def execute_deliveries(self, messages: Iterable[Record | Mapping[str, Any]], remaining: Remaining | None = None) -> tuple[str, ...]:
        """Execute a batch of wakeups: SQS records as Lambda gets them (`messageId`, `body`), or parsed `Record`s.

        `remaining` gives the seconds until the process is stopped; None: never. Returns the ids of messages that failed.
        """
        return self._execute(messages, remaining)

    def execute_next(self, queues: Collection[Queue | str] | None = None) -> RunId | None:
        """Execute the oldest dispatched run of these queues and nothing after it; None when none is dispatched.

        Default: all queues but those bound to FIFO, whose runs start only as SQS delivers them.
        Raises `UnavailableError` when storage is out of reach, before the run or after it: then it is recovered.
        """
        from runlane.services.next_run import execute_next

        try:
            return execute_next(self._worker, self._names(queues))
        finally:
            self._worker.telemetry.flush()

    def deliver_sqs(self, event: Mapping[str, Any], remaining: Remaining | None = None) -> dict[str, list[dict[str, str]]]:
        """An SQS event in, Lambda's partial batch response out."""
        records = _records(event)
        failed = self.execute_deliveries(records, remaining)
        if failed and (remaining is None or remaining() > RETURNING_TAKES):
            self._give_back(records, failed)
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}

    def worker(
        self,
        mode: Mode = "poll",
        *,
        queues: Collection[Queue | str] | None = None,
        concurrency: int | None = None,
        grace: Duration = "25s",
    ) -> ResidentWorker:
        """Start a worker that lives on in this process, off Lambda, on threads of its own; `stop` and `wait` end it.

        `"poll"` finds dispatched, recorded and due runs in storage by itself; `"drain"` does so until nothing is due, and ends;
        `"sqs"` consumes the transport's messages. `queues`: default all; those bound to FIFO are only consumed. `concurrency`:
        attempts at a time, default `worker_concurrency`. `grace`: what `stop` gives to attempts under way.
        """
        faults: list[str] = []
        from runlane.services.resident.start import ResidentOptions, start_worker

        names = _checked(faults, self._known if mode == "sqs" else self._names, queues) or ()
        size = self._worker.settings.concurrency if concurrency is None else _concurrency(concurrency, faults)
        _checked(faults, parse_duration, grace, "grace")
        ConfigurationError.raise_if(faults)
        return start_worker(self._worker, self._lane, ResidentOptions(mode, names, size, grace), self._parsed, self._observers)

    def verify(
        self, *, since: datetime | None = None, queue: Queue | str | None = None, run: str | None = None, limit: int = 20
    ) -> Verification:
        """Read the event history and the present state, and tell every broken invariant with the runs that break it; changes nothing.

        All of one snapshot, on a connection of its own. `since`: runs triggered and slots taken or given since then; `queue`: of one
        queue; `run`: one run's own history and place, without the slots and counts of its partition. `limit` (1 to 1000): violations named
        for each invariant. `ContractError` `option_invalid` for a scope that cannot be; `NotFoundError` `run_not_found`.
        """
        from runlane.services.operate.arguments import queue_name
        from runlane.services.operate.verify import verify

        if run is not None:
            self.runs.get(run)
        name = None if queue is None else queue_name(self.queue_registry, queue)
        return verify(self._lane.storage, since=since, queue=name, run=run, limit=limit)

    def tick(self, time_budget: float | None = None, *, remaining: Remaining | None = None) -> dict[str, Any]:
        """Maintenance until the backlog is empty or the time is up: `{"counts": {phase: n}, "failed": […], "unfinished": […]}`.

        `time_budget` is in seconds; `remaining` gives the seconds until the process is stopped.
        """
        self._drift.look()
        try:
            return _shown(self._maintenance.tick(_tick_budget(time_budget, remaining)))
        finally:
            self._worker.telemetry.flush()

    def _execute(
        self, messages: Iterable[Record | Mapping[str, Any]], remaining: Remaining | None, *observers: FailureObserver
    ) -> tuple[str, ...]:
        records = [message if isinstance(message, Record) else self._parsed(message) for message in messages]
        delivery = Delivery(self._worker, (*self._observers, *observers))
        try:
            return delivery.deliver(records, remaining)
        finally:
            self._worker.telemetry.flush()

    def _give_back(self, records: Sequence[Mapping[str, Any]], failed: Collection[str]) -> None:
        if self._lane.give_back is not None:
            try:
                self._lane.give_back(records, failed)
            except Exception as error:  # The work is done, and its answer must not be lost: the whole batch would come again.
                code, detail = (error.code, error.message) if isinstance(error, RunlaneError) else (type(error).__name__, repr(error))
                self._worker.telemetry.emit("return.failed", count=len(failed), error=code, detail=detail)

    def _parsed(self, message: Mapping[str, Any]) -> Record:
        if not isinstance(message, Mapping) or not isinstance(message_id := message.get("messageId"), str):
            raise _no_event("a record has no messageId, so its failure could not be told")
        parse = self._lane.parse_wakeup
        if parse is None:
            raise ConfigurationError("the lane has no parse_wakeup, so raw messages cannot be read; give Lane(…, parse_wakeup=…)")
        try:
            body: Any = message.get("body")
            return Record(message_id, parse(body, self.environment), group_of(message))
        except RunlaneError as error:
            return Record(message_id, error, group_of(message))

    def _names(self, chosen: Collection[Queue | str] | None) -> tuple[str, ...]:
        """The queues whose runs may start without a delivery; default: all. Those bound to FIFO never do, so none may be chosen."""
        names = self._known(chosen)
        if chosen is None:
            return tuple(name for name in names if name not in self._ordered)
        ConfigurationError.raise_if(
            f"queue {name!r} is bound to FIFO: its runs start only as its SQS queue delivers them; leave it out here, "
            "and let a worker receive from that SQS queue"
            for name in names
            if name in self._ordered
        )
        return names

    def _known(self, chosen: Collection[Queue | str] | None) -> tuple[str, ...]:
        registry = self.queue_registry
        if chosen is None:
            return tuple(queue.name for queue in registry)
        return tuple((registry.named(queue) if isinstance(queue, str) else registry.require(queue)).name for queue in chosen)


def _own_name() -> str:
    return f"{gethostname()}-{getpid()}-{uuid4().hex[:8]}"


def _checked(faults: list[str], check: Callable[..., Any], *arguments: Any) -> Any:
    """The checked value; None, and another fault in the list, if it is refused."""
    try:
        return check(*arguments)
    except ConfigurationError as error:
        faults += error.faults
    except RunlaneError as error:
        faults.append(error.message)
    return None


def _records(event: object) -> list[Any]:
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list):
        raise _no_event("it has no list of Records")
    return records


def _no_event(fault: str) -> ContractError:
    return ContractError("event_invalid", f"event: {fault}; give it as SQS hands it to Lambda", meta={"field": "Records"})


def _positive(value: Duration, what: str) -> Duration:
    if not parse_duration(value, what):
        raise ContractError("duration_invalid", f"{what}: is zero; give more")
    return value


def _seconds(value: Duration, what: str, faults: list[str]) -> float:
    duration = _checked(faults, parse_duration, value, what)
    return 0.0 if duration is None else float(duration.total_seconds())


def _concurrency(value: object, faults: list[str]) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1000:
        return value
    faults.append(f"worker_concurrency: {shown(value)} is no whole number from 1 to 1000")
    return 1


def _tick_budget(time_budget: float | None, remaining: Remaining | None) -> float:
    left = inf if remaining is None else max(0.0, remaining() - TICK_MARGIN)
    return left if time_budget is None else min(left, time_budget)


def _shown(report: TickReport) -> dict[str, Any]:
    return {"counts": report.counts, "failed": list(report.failed), "unfinished": list(report.unfinished)}
