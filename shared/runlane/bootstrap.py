"""The composition root: from settings to a runtime; built on the first event, never at import.

What no delivery needs is imported where it is used, as every cold start would pay for it.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psycopg

from runlane.adapters.postgres.connection import ConnectionSource, FixedSource, Session, log_in
from runlane.adapters.postgres.credentials import SecretSource, TokenSource, read_address
from runlane.adapters.postgres.faults import translate
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.adapters.postgres.trust import with_verified_tls
from runlane.adapters.powertools import PowertoolsTelemetry
from runlane.adapters.sqs.bindings import Fifo, SqsBinding, SqsTimers, names_fifo, sqs_queue, sqs_timers
from runlane.adapters.sqs.envelope import parse_wakeup
from runlane.adapters.sqs.transport import SqsTransport
from runlane.cold_start import uncollected
from runlane.domain.durations import parse_duration
from runlane.domain.errors import ConfigurationError
from runlane.domain.nearest import did_you_mean
from runlane.domain.queue import Queue
from runlane.domain.shown import shown
from runlane.runtime import Runlane
from runlane.services.attempt import Middleware
from runlane.services.lane import GiveBack, Lane
from runlane.services.payload import AnyTask
from runlane.settings import APP_PATH, Settings, read_settings

if TYPE_CHECKING:
    from runlane.adapters.postgres.audit import PostgresAudit
    from runlane.adapters.postgres.health import PostgresHealth
    from runlane.adapters.postgres.migrate import Phase
    from runlane.ports.source import MessageSource


def environment_runlane(
    *, queues: Iterable[Queue], tasks: Iterable[AnyTask] = (), middleware: Sequence[Middleware] = (), settings: Settings | None = None
) -> Runlane:
    """A runtime on the Postgres and SQS that the environment names; connects to neither yet.

    Raises `ConfigurationError` with every fault of the environment, or of the catalog.
    """
    found = settings or read_settings()
    chosen = tuple(queues)
    telemetry = PowertoolsTelemetry(environment=found.environment, metrics=found.in_lambda, tell_runs=found.tell_runs)
    return Runlane(
        lane=environment_lane(chosen, found),
        queues=chosen,
        tasks=tasks,
        environment=found.environment,
        middleware=middleware,
        worker_concurrency=found.worker_concurrency,
        lease_duration=found.lease_duration,
        retention=found.retention,
        telemetry=telemetry,
        # Elsewhere a process outlives its deliveries, and an attempt that ignores its deadline keeps its slot until it ends.
        exit_process=_exit_process if found.in_lambda else None,
    )


def environment_lane(queues: Iterable[Queue], settings: Settings) -> Lane:
    storage = PostgresStorage(_source(settings), schema=settings.database_schema, lease_for=parse_duration(settings.lease_duration))
    if settings.transport == "none":
        return Lane(storage, None)
    bindings, timers = _bound(tuple(queues), settings)
    transport = SqsTransport(bindings, settings.environment, endpoint_url=settings.endpoint_url, timers=timers)

    def sources(queues: Collection[str]) -> Sequence[MessageSource]:
        from runlane.adapters.sqs.sources import SqsSources

        return SqsSources(bindings, timers, settings.endpoint_url)(queues)

    @cache
    def returns() -> GiveBack:
        from runlane.adapters.sqs.returning import SqsReturns

        return SqsReturns(bindings, settings.endpoint_url)

    return Lane(storage, transport, parse_wakeup, sources, lambda records, failed: returns()(records, failed))


@cache
def runtime() -> Runlane:
    """The deployer's runtime, built once a process from `RUNLANE_APP`. What differs from the policies in force, the next tick tells."""
    with uncollected():
        return load_app(read_settings().app)


def survive_snapshots() -> None:
    """Where Lambda takes a snapshot of this process (SnapStart): have the runtime built before, and renewed in each process made of it.

    Nothing connects before, so that neither a connection nor the state of the driver's TLS is shared. An application that connects
    while it is imported must see to that itself.
    """
    try:
        hooks = import_module("snapshot_restore_py")
    except ImportError:  # Only Lambda brings it.
        return
    hooks.register_before_snapshot(lambda: runtime().close())
    hooks.register_after_restore(_after_restore)


def _after_restore() -> None:
    random.seed()
    runtime().renew()


def load_app(path: str) -> Runlane:
    """The `Runlane` at `module:attribute`, or what the function there returns; `ConfigurationError` `app_invalid` when there is neither.

    What the application itself raises while it is imported or built comes through as it is.
    """
    if re.fullmatch(APP_PATH, path) is None:
        raise _app_invalid(path, "names no application; write it as module:attribute, e.g. app:runlane")
    module, _, attribute = path.partition(":")
    try:
        found = _named(_imported(module, path), attribute, path)
        built = found() if callable(found) and not isinstance(found, Runlane) else found
    except SystemExit as error:  # Else a command would end as if it had succeeded.
        raise _app_invalid(path, 'exits the process when it is loaded; keep the exit behind `if __name__ == "__main__"`') from error
    if not isinstance(built, Runlane):
        raise _app_invalid(path, f"is a {type(built).__name__}, not a Runlane")
    return built


def _imported(module: str, path: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if f"{module}.".startswith(f"{missing}."):
            fault = f"was not found ({error}); name it as module:attribute, as it is imported from here"
        else:
            fault = f"was found, but it imports {missing!r}, which was not; install that, or mend the import"
        raise _app_invalid(path, fault) from error


def _named(module: ModuleType, attribute: str, path: str) -> Any:
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        near = did_you_mean(attribute, vars(module))
        raise _app_invalid(path, f"was not found: module {module.__name__} has no {attribute!r}{near}") from error


def _app_invalid(path: str, fault: str) -> ConfigurationError:
    return ConfigurationError(f"RUNLANE_APP: {path} {fault}", code="app_invalid")


def migrate(
    phase: Phase | None = None, *, release: str | None = None, previous: str | None = None, settings: Settings | None = None
) -> tuple[str, ...]:
    """Apply pending migrations of `phase` (None: all), put the catalog's policies and schedules in force; the names of what changed.

    `release`: the one that is deployed, after `previous`; it leaves some for the next, or for a person. None: a person migrates.
    """
    if phase not in (None, "before", "after"):
        raise ConfigurationError(f"phase: {shown(phase)} is none; give before or after, or leave it out for both")
    found = settings or read_settings()
    applied = _migrate_schema(found, phase, release, previous)
    if phase == "after":
        return applied
    app = load_app(found.app)
    try:
        changed = [f"queue {name}" for name in app.queues.put_in_force(actor="migrate")]
        changed += [f"schedule {name} ({change})" for name, change in app.schedules.put_in_force(actor="migrate").items()]
    finally:
        # The app may be one that the process goes on with, so only its connections are given up.
        app.disconnect()
    return (*applied, *changed)


def migrate_for_stack(event: Mapping[str, Any], *, remaining: Callable[[], float]) -> dict[str, Any]:
    """Migrate as a custom resource of a CloudFormation stack asks for, and answer it; `remaining`: seconds until the process is stopped."""
    # Its HTTP client would slow down the start of every other function.
    from runlane.adapters.cloudformation.answer import answer

    answer(event, migrate, remaining=remaining)
    return {}


def audit(settings: Settings | None = None) -> PostgresAudit:
    """A reader of the environment's history and counters, on a connection of its own."""
    from runlane.adapters.postgres.audit import PostgresAudit

    found = settings or read_settings()
    return PostgresAudit(Session(_source(found), found.database_schema))


def health(settings: Settings | None = None) -> PostgresHealth:
    """A reader of what the database tells about itself, on a connection of its own."""
    from runlane.adapters.postgres.health import PostgresHealth

    found = settings or read_settings()
    return PostgresHealth(Session(_source(found), found.database_schema))


def release_migrations(*, manual: bool = False, phase: Phase | None = None) -> dict[int, str]:
    """The titles of this release's migrations, by number; `manual`: only of those that no deploy applies."""
    from runlane.adapters.postgres.migrate import load_migrations

    chosen = (one for one in load_migrations() if (one.manual or not manual) and phase in (None, one.phase))
    return {migration.number: migration.title for migration in chosen}


def _migrate_schema(settings: Settings, phase: Phase | None, release: str | None, previous: str | None) -> tuple[str, ...]:
    from runlane.adapters.postgres.migrate import grant, make_role
    from runlane.adapters.postgres.migrate import migrate as apply_migrations

    try:
        with log_in(_source(settings)) as connection:
            applied = apply_migrations(
                connection,
                schema=settings.database_schema,
                environment=settings.environment,
                phase=phase,
                release=release,
                previous=previous,
            )
            if settings.database_role is not None:
                if settings.database_role_secret_arn is not None:
                    password = SecretSource(settings.database_role_secret_arn).password()
                    make_role(connection, role=settings.database_role, password=password)
                grant(connection, schema=settings.database_schema, role=settings.database_role)
            return applied
    except psycopg.Error as error:
        raise translate(error) from error


def _source(settings: Settings) -> ConnectionSource:
    url, ca = settings.database_url, settings.database_ca
    if settings.database_secret_arn is not None:
        return SecretSource(settings.database_secret_arn, address=url, ca=ca)
    if settings.database_iam:
        return TokenSource(url or "", ca=ca)
    return FixedSource(with_verified_tls(read_address(url or ""), ca=ca))


def _bound(queues: Sequence[Queue], settings: Settings) -> tuple[Sequence[SqsBinding], SqsTimers | None]:
    """The binding of every queue, and the timers queue; `ConfigurationError` with every fault, by its variable."""
    faults = list(_strangers({queue.name for queue in queues}, settings))
    bindings = [binding for queue in queues if (binding := _binding(queue, settings, faults)) is not None]
    timers = None
    if settings.timers_queue_url is not None:
        try:
            timers = sqs_timers(queue_url=settings.timers_queue_url)
        except ConfigurationError as error:
            faults += [f"RUNLANE_TIMERS_QUEUE_URL: {fault}" for fault in error.faults]
    elif fifo := [binding.queue.name for binding in bindings if binding.fifo is not None]:
        faults.append(
            f"RUNLANE_TIMERS_QUEUE_URL: is not set; the FIFO queues of {', '.join(fifo)} need it, as FIFO delays no single message: "
            "name a standard SQS queue that the workers receive from, too"
        )
    ConfigurationError.raise_if(faults)
    return bindings, timers


def _binding(queue: Queue, settings: Settings, faults: list[str]) -> SqsBinding | None:
    url = settings.queue_urls.get(queue.name, settings.queue_url)
    if url is None:
        faults.append(f"queue {queue.name!r} has no SQS queue: set RUNLANE_QUEUE_URL, or name it in RUNLANE_QUEUE_URLS")
        return None
    group = settings.message_groups.get(queue.name)
    is_fifo = group is not None or names_fifo(url)
    try:
        return sqs_queue(queue, queue_url=url, fifo=Fifo(group or "run") if is_fifo else None)
    except ConfigurationError as error:
        variable = "RUNLANE_QUEUE_URLS" if queue.name in settings.queue_urls else "RUNLANE_QUEUE_URL"
        faults += [f"{variable}: {fault}" for fault in error.faults]
        return None


def _strangers(known: Collection[str], settings: Settings) -> Iterator[str]:
    """A misspelt name would silently leave its queue on the common SQS queue."""
    having = f"the application has {', '.join(sorted(known)) or 'none'}"
    for variable, named in (("RUNLANE_QUEUE_URLS", set(settings.queue_urls)), ("RUNLANE_MESSAGE_GROUPS", set(settings.message_groups))):
        yield from (f"{variable}: {name!r} is no queue here; {having}; correct or remove it" for name in sorted(named - set(known)))


def _exit_process() -> None:
    os._exit(1)
