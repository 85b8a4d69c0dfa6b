"""What processes do to the same runs at once, in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import ConflictError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.records import Fire
from runlane.domain.run import TERMINAL
from runlane.domain.schedule import Timing
from runlane.ports.operations import PruneFilter
from runlane.ports.schedules import DueSchedule, Plan
from runlane.ports.stores import NewRun, ScheduleDefinition
from tests.postgres.factories import LEASE, T, children, ending, new_run, settlement

SOON = timedelta(milliseconds=1)
STANDING = ("dispatch", "waiting", "timer", "lease", "inbox")


@dataclass(frozen=True)
class Process:
    """A process, as far as Postgres can tell: it has its own storage, a connection for callers' transactions, and its own dice."""

    storage: PostgresStorage
    connection: psycopg.Connection
    rng: random.Random

    def standing(self, *tables: str) -> list[str]:
        query = " UNION ALL ".join(f"(SELECT run_id::text FROM runlane.{table} LIMIT 30)" for table in tables)
        with self.connection.transaction():
            return [run_id for (run_id,) in self.connection.execute(query.encode())]

    def trigger(self, runs: list[NewRun]) -> None:
        self.dispatch_after(self.storage.triggers.trigger_runs(runs, eager=True).starved_queues)

    def dispatch_after(self, starved_queues: tuple[str, ...]) -> None:
        """What services do after the commit: others may have freed the window while it seemed to be full."""
        if starved_queues:
            self.storage.triggers.dispatch(starved_queues)

    def pick(self, found: list[str], count: int) -> list[RunId]:
        return [RunId(run_id) for run_id in self.rng.sample(found, min(count, len(found)))]


Move = Callable[[Process], object]


def runs_of(shape: str, *, backwards: bool = False, delay: timedelta | None = None) -> list[NewRun]:
    found = [
        new_run(queue, concurrency_key=f"k{key}", tenant=f"t{key % 3}" if shape == "tenants" else None, delay=delay)
        for queue in ("a", "b")
        for key in range(8)
    ]
    return found[::-1] if backwards else found


def trigger(shape: str, *, backwards: bool = False, delay: timedelta | None = None) -> Move:
    return lambda process: process.trigger(runs_of(shape, backwards=backwards, delay=delay))


def drain(process: Process) -> None:
    """Claim a handful from both queues and end them in any way."""
    claimed = process.storage.deliveries.claim_oldest(["a", "b"], limit=12, lease_for=LEASE, worker="w")
    kinds = [OutcomeKind.SUCCEEDED, OutcomeKind.SUCCEEDED, OutcomeKind.RELEASED, OutcomeKind.RETRY, OutcomeKind.HANDED_BACK]
    ends = [ending(claim, process.rng.choice(kinds)) for claim in claimed.claims]
    process.rng.shuffle(ends)
    process.storage.deliveries.settle_runs(ends)


def trigger_plainly(shape: str) -> Move:
    """Runs that are alike, a queue at a time, and now and then more than the window takes."""

    def move(process: Process) -> None:
        for queue in "ab":
            new = [run for run in runs_of(shape) if run.queue == queue]
            process.trigger(new * process.rng.choice([1, 1, 4]))

    return move


def finish(process: Process) -> None:
    """Claim a handful, keep it alive, and end all of it well, in one batch and by what the last claim has left."""
    deliveries = process.storage.deliveries
    for queue in "ab":
        claims = deliveries.claim_oldest([queue], limit=12, lease_for=LEASE, worker="w").claims
        deliveries.heartbeat({claim.run_id: claim.token for claim in claims[::-1]}, lease_for=LEASE)
        deliveries.settle_runs([settlement(claim) for claim in claims])


def change_policies(process: Process) -> None:
    for queue in "ab":
        limit, window = process.rng.choice([None, 1, 2, 3]), process.rng.choice([5, 20, 100])
        process.storage.queues.write_policies([Queue(queue, concurrency_limit=limit, dispatch_window=window)], actor=None)


def claim_anything(*, backwards: bool = False) -> Move:
    """Wakeups with and without dispatch rows in one batch, as SQS mixes them."""

    def move(process: Process) -> None:
        found = sorted(process.standing("dispatch", "waiting", "timer"), reverse=backwards)
        claimed = process.storage.deliveries.claim_runs(process.pick(found, 10), lease_for=LEASE, worker="w")
        process.storage.deliveries.settle_runs([settlement(claim) for claim in claimed.claims])

    return move


def cancel_anything(process: Process) -> None:
    for run_id in process.pick(process.standing(*STANDING, "successor"), 3):
        # One that has ended and was pruned meanwhile is nowhere.
        give_way(partial(process.storage.runs.cancel_run, run_id, actor=None, reason=None), "run_moving")


def operate_on_anything(*, backwards: bool = False) -> Move:
    """What people do to many runs at once, and to single ones."""

    def move(process: Process) -> None:
        operations = process.storage.operations
        found = sorted(process.standing(*STANDING), reverse=backwards)
        some = process.pick(found, 4)
        give_way(lambda: operations.cancel_runs(some, actor=None, reason=None), "run_moving")
        for run_id in process.pick(found, 3):
            at = datetime.now(UTC) + timedelta(seconds=process.rng.choice([-1, 60]))
            give_way(partial(operations.reschedule_run, run_id, at, actor=None), "run_moving")
        for place in range(2):
            run_now(process, "ab"[place], f"k{place}")

    return move


def run_now(process: Process, queue: str, key: str) -> None:
    new = new_run(queue, concurrency_key=key)
    started = give_way(lambda: process.storage.operations.run_now(new, lease_for=LEASE, worker="w"), "queue_at_capacity")
    if started is None:
        return
    process.dispatch_after(started.starved_queues)
    if started.claim is not None:
        process.storage.deliveries.settle_runs([settlement(started.claim, OutcomeKind.FAILED)])


def give_way(move: Callable[[], T], code: str) -> T | None:
    """None if it is refused with this code; a deadlock has another."""
    try:
        return move()
    except ConflictError as error:
        if error.code != code:
            raise
        return None


def make_again(*, backwards: bool = False) -> Move:
    """Retries and reruns, both over both queues, and then pruning what they came from."""

    def move(process: Process) -> None:
        operations = process.storage.operations
        found = sorted(process.standing("outcome"), reverse=backwards)
        for only_failed in (True, False):
            picked = process.pick(found, 5)
            runs = [run for run_id in picked for run in children(run_id, only_failed=only_failed, queue=process.rng.choice("ab"))]
            process.dispatch_after(operations.rerun_runs(runs, only_failed=only_failed).starved_queues)
        operations.prune_runs(PruneFilter(timedelta(0), TERMINAL), after=None, limit=10, dry_run=False)

    return move


def maintain(process: Process) -> None:
    maintenance = process.storage.maintenance
    maintenance.due_timers(look_ahead=timedelta(minutes=3), limit=100)
    maintenance.fold_recorded(limit=100)
    maintenance.expire_dispatches(limit=100)
    maintenance.expire_deadlines(limit=100)
    maintenance.dispatch_queues(limit=100)
    maintenance.claim_unpublished(limit=100)


def expire_all(process: Process) -> None:
    with process.connection.transaction():
        process.connection.execute(
            "UPDATE runlane.dispatch SET expires_at = now() - interval '1 second' WHERE run_id IN"
            " (SELECT run_id FROM runlane.dispatch ORDER BY run_id LIMIT 5 FOR UPDATE SKIP LOCKED)"
        )
    process.storage.maintenance.expire_dispatches(limit=100)


def pause(process: Process) -> None:
    tenant, key = process.rng.choice([(None, None), (None, "k1"), ("t1", None), ("t1", "k1")])
    process.storage.queues.pause("a", tenant=tenant, concurrency_key=key, actor=None)
    process.storage.queues.resume("a", tenant=tenant, concurrency_key=key, actor=None)


def trigger_in_a_hurry(shape: str, *, backwards: bool = False) -> Move:
    """Runs that must have ended as soon as they are there."""

    def move(process: Process) -> None:
        found = [run._replace(finish_timeout=SOON) for run in runs_of(shape, backwards=backwards)]
        process.trigger(found)
        process.storage.maintenance.expire_deadlines(limit=100)

    return move


def join(shape: str) -> Move:
    """A caller's own transaction that records runs twice."""

    def move(process: Process) -> None:
        with process.connection.transaction():
            process.storage.triggers.record_runs(process.connection, runs_of(shape))
            process.storage.triggers.record_runs(process.connection, runs_of(shape, delay=timedelta(hours=1))[::-1])

    return move


def succeed(shape: str, *, backwards: bool = False) -> Move:
    """Runs of singleton keys, in all modes."""
    return lambda process: process.trigger(_keyed(process.rng, shape, backwards=backwards))


def join_as_successors(shape: str) -> Move:
    def move(process: Process) -> None:
        with process.connection.transaction():
            found = _keyed(process.rng, shape, backwards=process.rng.random() < 0.5)
            process.storage.triggers.record_runs(process.connection, found)
        process.storage.triggers.dispatch(["a", "b"])

    return move


def _keyed(rng: random.Random, shape: str, *, backwards: bool) -> list[NewRun]:
    modes = ["latest", "cancel", "latest", "return"]
    found = [
        run._replace(singleton_key=f"s{place % 10}", singleton_mode=rng.choice(modes), start_timeout=SOON)
        for place, run in enumerate(runs_of(shape))
    ]
    return found[::-1] if backwards else found


def schedule_runs(shape: str) -> Move:
    """Schedules with and without singleton keys: fired ahead and late, paused, resumed, changed and removed."""

    def move(process: Process) -> None:
        store, rng = process.storage.schedules, process.rng
        found = _scheduled(rng, shape)
        if rng.random() < 0.5:
            store.write_schedules(found, actor=None)
        due = store.due_schedules(limit=100)
        rng.shuffle(found)
        store.materialize([_late_and_ahead(one) for one in due])
        store.pause(found[0].schedule_id, actor=None)
        store.resume(found[0].schedule_id, actor=None)
        if made := store.trigger(found[1].schedule_id, actor=None):
            process.dispatch_after(made.starved_queues)

    return move


def _scheduled(rng: random.Random, shape: str) -> list[ScheduleDefinition]:
    runs = runs_of(shape)
    runs[::2] = [run._replace(singleton_key=f"s{place % 10}", singleton_mode="latest") for place, run in enumerate(runs[::2])]
    definitions = [
        ScheduleDefinition(f"{place}", Timing(every=timedelta(hours=1)), True, run._replace(priority=rng.randrange(3)))
        for place, run in enumerate(runs)
    ]
    return rng.sample(definitions, len(definitions) - 2)


def _late_and_ahead(due: DueSchedule) -> Plan:
    fires = tuple(Fire(moment, moment) for moment in (due.now - timedelta(minutes=1), due.now + timedelta(hours=1)))
    return Plan(due.schedule_id, due.version, due.now, due.now, fires)
