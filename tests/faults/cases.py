"""Every use case, once: what stands before it, what the doomed process does, and what must hold of it at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from runlane.adapters.postgres.aging import PostgresAging
from runlane.adapters.postgres.audit import PostgresAudit
from runlane.adapters.postgres.health import PostgresHealth
from runlane.domain.errors import RunlaneError
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from runlane.domain.schedule import Schedule
from runlane.domain.task import Task, task
from runlane.ports.maintenance import PhaseResult
from runlane.runtime import Runlane
from runlane.services.context import Context
from runlane.services.maintenance import PHASES
from runlane.services.trigger import Item
from tests.faults.play import QUEUES, Act, Case, Outcome, Play
from tests.postgres.aged import age_run, make_week, retain_all
from tests.postgres.test_retention import wake
from tests.postgres.test_schedules import quiet

Script = Generator[Act | None, Any, None]
CASES: dict[str, Case] = {}
HOUR = timedelta(hours=1)


def case(play: Case) -> Case:
    CASES[play.__name__] = play
    return play


# Recording


@case
def trigger(play: Play) -> Script:
    outcome: Outcome = yield lambda: play.doomed.trigger(play.work, "succeed")
    if outcome.is_done:
        play.acknowledge(outcome.value)
    yield None
    assert play.runs() == 1 or not outcome.is_done


@case
def trigger_with_an_idempotency_key(play: Play) -> Script:
    """Whoever got no answer triggers again: there is one run."""
    again = partial(Runlane.trigger, task=play.work, payload="succeed", idempotency_key="k", idempotency_ttl="1d")
    outcome: Outcome = yield lambda: again(play.doomed)
    if outcome.is_done:
        play.acknowledge(outcome.value)
    play.acknowledge(again(play.rest))
    yield None
    assert play.runs() == 1


@case
def trigger_with_a_singleton_key(play: Play) -> Script:
    """`cancel` ends the owner and takes its place, in the transaction that records the run."""
    owner = play.trigger(singleton_key="s")
    outcome: Outcome = yield lambda: play.doomed.trigger(play.work, "succeed", singleton_key="s", singleton_mode="cancel")
    if outcome.is_done:
        play.acknowledge(outcome.value)
        assert play.status(owner) is Status.CANCELLED
    yield None
    assert (play.status(owner) is Status.CANCELLED) == (play.runs() == 2)


@case
def trigger_the_latest_of_a_key(play: Play) -> Script:
    play.trigger(singleton_key="s")
    held = play.trigger(singleton_key="s", singleton_mode="latest")
    outcome: Outcome = yield lambda: play.doomed.trigger(play.work, "succeed", singleton_key="s", singleton_mode="latest")
    if outcome.is_done:
        play.acknowledge(outcome.value)
    yield None
    assert (play.status(held) is Status.CANCELLED) == (play.runs() == 3)


@case
def trigger_for_later(play: Play) -> Script:
    outcome: Outcome = yield lambda: play.doomed.trigger(play.work, "succeed", delay="5m")
    if outcome.is_done:
        play.acknowledge(outcome.value)


@case
def trigger_deferred_and_dispatch(play: Play) -> Script:
    def act() -> None:
        result = play.doomed.trigger(play.work, "succeed", queue="one", dispatch="deferred")
        play.acknowledge(result)
        play.doomed.dispatch(result)

    yield act


@case
def trigger_many(play: Play) -> Script:
    outcome: Outcome = yield lambda: play.doomed.trigger_many(play.work, ["succeed"] * 5, queue="one")
    if outcome.is_done:
        play.acknowledge(outcome.value)
    yield None
    assert play.runs() in ((5,) if outcome.is_done else (0, 5)), "all or none"


@case
def trigger_many_unlike(play: Play) -> Script:
    items = [Item("succeed", priority=1), Item("succeed", queue="one"), Item("succeed", delay="1h"), Item("succeed", idempotency_key="k")]
    outcome: Outcome = yield lambda: play.doomed.trigger_many(play.work, items)
    if outcome.is_done:
        play.acknowledge(outcome.value)
    yield None
    assert play.runs() in ((4,) if outcome.is_done else (0, 4)), "all or none"


@case
def trigger_in_a_transaction(play: Play) -> Script:
    """The runs exist if and only if the caller's own row does."""

    def act() -> None:
        with closing(play.stage.caller()) as connection, play.doomed.transaction(connection) as tx:
            results = [tx.trigger(play.work, "succeed"), *tx.trigger_many(play.work, ["succeed"] * 2, queue="one", singleton_key=None)]
        play.acknowledge(results)

    yield act
    assert play.runs() == 3 * play.lane.value("SELECT count(*) FROM faults.caller")


@case
def trigger_whose_publication_is_refused(play: Play) -> Script:
    def act() -> Any:
        play.wire.refuses = lambda wakeup: True
        try:
            return play.doomed.trigger(play.work, "succeed")
        finally:
            play.wire.refuses = lambda wakeup: False

    outcome: Outcome = yield act
    if outcome.is_done:
        play.acknowledge(outcome.value)


@case
def mark_late(play: Play) -> Script:
    def act() -> None:
        play.acknowledge(play.doomed.trigger_many(play.work, ["succeed"] * 2))
        play.doomed.parts.publisher.flush()

    yield act


@case
def trigger_many_under_a_throttle(play: Play) -> Script:
    """The first is given a start, the others wait for theirs."""
    outcome: Outcome = yield lambda: play.doomed.trigger_many(play.work, ["succeed"] * 3, queue="slow")
    if outcome.is_done:
        play.acknowledge(outcome.value)


# Delivering


def delivery(behaviour: Callable[[Play, Context], Any], status: Status, queue: str = "main", **options: Any) -> Case:
    """One run and, where the queue has a limit or a throttle, another that waits behind it."""

    def play_it(play: Play) -> Script:
        play.behaviours["behave"] = lambda ctx: behaviour(play, ctx)
        run_id = play.trigger("behave", queue=queue)
        play.trigger(queue=queue)
        (wakeup,) = (one for one in play.wire.take() if one.run_id == run_id)
        yield play.deliver(wakeup, process=play.process(play.doomed_lane, **options) if options else None)
        yield None
        assert play.status(run_id) is status

    return play_it


def first_time(then: Callable[[Context], Any]) -> Callable[[Play, Context], Any]:
    return lambda play, ctx: then(ctx) if play.tries[ctx.run_id] == 1 else "done"


def raising(ctx: Context) -> None:
    raise ValueError("no")


def cancelled_meanwhile(play: Play, ctx: Context) -> str:
    with suppress(RunlaneError):
        play.rest.runs.cancel(ctx.run_id)
    return "done"


def beating(play: Play, ctx: Context) -> str:
    """Two beats, the first of which extends the lease. What they cannot do, they do at the next."""
    heartbeat = play.doomed.parts.heartbeat
    for _ in range(2 if play.tries[ctx.run_id] == 1 else 0):
        with suppress(RunlaneError):
            heartbeat.beat()
    return "done"


CASES |= {
    "deliver_a_success": delivery(lambda play, ctx: "done", Status.SUCCEEDED),
    "deliver_a_success_and_hand_over": delivery(lambda play, ctx: "done", Status.SUCCEEDED, "one"),
    "deliver_a_success_and_hand_over_in_a_queue": delivery(lambda play, ctx: "done", Status.SUCCEEDED, "total"),
    "deliver_a_success_under_a_throttle": delivery(lambda play, ctx: "done", Status.SUCCEEDED, "slow"),
    "deliver_a_retry": delivery(first_time(raising), Status.SUCCEEDED, "one"),
    "deliver_a_release": delivery(first_time(lambda ctx: ctx.release("10m", reason="not yet")), Status.SUCCEEDED, "one"),
    "deliver_what_is_cancelled_meanwhile": delivery(cancelled_meanwhile, Status.CANCELLED, "one"),
    "deliver_with_a_heartbeat": delivery(beating, Status.SUCCEEDED, "one"),
    "deliver_and_go_on_inline": delivery(lambda play, ctx: "done", Status.SUCCEEDED, "one", continue_inline_for="30s"),
    "hand_back_an_unknown_task": delivery(lambda play, ctx: "done", Status.SUCCEEDED, "one", tasks=()),
}


@case
def deliver_a_failure(play: Play) -> Script:
    (run_id,) = play.acknowledge(play.rest.trigger(play.brittle, "no", queue="one"))
    play.trigger(queue="one")
    yield play.deliver(*play.wire.take())
    yield None
    assert play.status(run_id) is Status.FAILED


@case
def deliver_without_a_dispatch_row(play: Play) -> Script:
    """The wakeup of a run that waits makes it ready, and takes what the fair order picks."""
    run_id = play.trigger(delay="1h")
    play.lane.age_timer(run_id)
    (wakeup,) = [*play.wire.take(), *play.wire.delayed] or [play.hint(run_id)]
    yield play.deliver(wakeup)
    yield None
    assert play.status(run_id) is Status.SUCCEEDED


@case
def deliver_what_another_worker_lost(play: Play) -> Script:
    run_id = play.trigger(queue="one")
    play.trigger(queue="one")
    play.lane.claim(run_id)
    play.lane.age_lease(run_id)
    yield play.deliver(*play.wire.take())
    yield None
    assert play.status(run_id) is Status.SUCCEEDED


@case
def forward_to_an_ordered_queue(play: Play) -> Script:
    """What is kept in order elsewhere came by the timers queue: it is dispatched to where it belongs."""
    run_id = play.trigger(queue="ordered", delay="1h")
    play.lane.age_timer(run_id)
    play.lose_messages()
    yield play.deliver(play.hint(run_id, "ordered"))


@case
def deliver_in_order(play: Play) -> Script:
    runs = [play.trigger(queue="ordered") for _ in range(2)]
    yield play.deliver(*play.wire.take(), group="g")
    yield None
    assert {play.status(run_id) for run_id in runs} == {Status.SUCCEEDED}


@case
def execute_next(play: Play) -> Script:
    play.trigger()
    play.lose_messages()
    yield lambda: play.doomed.execute_next()


@case
def look_and_listen(play: Play) -> Script:
    """What a worker that polls does beside claiming."""
    play.trigger(dispatch="deferred")

    def act() -> None:
        with closing(play.storage.bell(["main"])) as bell:
            bell.open()
            play.storage.deliveries.look(["main"])

    yield act


@case
def run_now(play: Play) -> Script:
    outcome: Outcome = yield lambda: play.doomed.run_now(play.work, "succeed", queue="one")
    if outcome.is_done:
        play.acknowledged.add(outcome.value.run.run_id)
        assert outcome.value.run.status is Status.SUCCEEDED


# Maintenance


def phase(name: str, prepare: Callable[[Play], Any]) -> None:
    """One step of it, in the state that it is there for."""
    (step,) = (phase.step for phase in PHASES if phase.name == name)

    def play_it(play: Play) -> Script:
        prepare(play)

        def act() -> PhaseResult:
            return step(play.doomed._upkeep)

        outcome: Outcome = yield act
        assert not outcome.is_done or play.stage.doom.is_struck or outcome.value.count > 0, "it had nothing to do"

    CASES[f"phase_{name}"] = play_it


def timers(play: Play) -> None:
    due, _ = play.trigger(queue="one", delay="1h"), play.trigger(queue="one", delay="2m")
    play.lane.age_timer(due)
    play.lose_messages()


def recorded(play: Play) -> None:
    for options in ({}, {"queue": "one"}, {"queue": "one"}, {"singleton_key": "s", "singleton_mode": "latest"}):
        play.trigger(**options, dispatch="deferred")
    with closing(play.stage.caller()) as connection:
        for mode in ("latest", "cancel"):
            play.acknowledge(play.rest.trigger(play.work, "succeed", connection=connection, singleton_key="s", singleton_mode=mode))
        connection.commit()


def unclaimed(play: Play) -> None:
    runs = [play.trigger(queue=queue) for queue in ("main", "one", "one", "slow", "slow")]
    play.lose_messages()
    play.lane.age_dispatch(*runs)


def lost_leases(play: Play) -> None:
    runs = [play.trigger(queue=queue) for queue in ("main", "one", "one")]
    play.lose_messages()
    play.lane.claim(*runs[:2])
    play.lane.age_lease(*runs)


def deadlines(play: Play) -> None:
    first, *_ = play.acknowledge(play.rest.trigger_many(play.hasty, ["no"] * 3, queue="one"))
    play.acknowledge(play.rest.trigger(play.hasty, "no"))
    play.lose_messages()
    play.lane.claim(first)
    play.lane.age_deadlines()


def spare_capacity(play: Play) -> None:
    """As if whoever lifted a pause had not given out what it freed."""
    play.rest.queues.pause("one")
    for _ in range(3):
        play.trigger(queue="one")
    play.lane.connection.execute(b"UPDATE runlane.queue SET paused_at = NULL WHERE name = 'one'")


def unpublished(play: Play) -> None:
    runs = [play.trigger(queue=queue) for queue in ("main", "one", "main")]
    play.lose_messages()
    play.lane.age_publication(*runs)


def last_week_missing(play: Play) -> None:
    for (name,) in play.lane.connection.execute(_LAST_WEEK).fetchall():
        play.lane.connection.execute(f"DROP TABLE runlane.{name}".encode())


_LAST_WEEK = b"""
SELECT relname FROM pg_class WHERE relnamespace = 'runlane'::regnamespace AND relkind = 'r' AND relispartition
  AND right(relname, 8) = (SELECT max(right(relname, 8)) FROM pg_class WHERE relnamespace = 'runlane'::regnamespace
                           AND relkind = 'r' AND relispartition AND relname ~ '_[0-9]{8}$')
"""

phase("due_timers", timers)
phase("fold_recorded", recorded)
phase("expire_dispatches", unclaimed)
phase("recover_leases", lost_leases)
phase("expire_deadlines", deadlines)
phase("dispatch_queues", spare_capacity)
phase("publish_unpublished", unpublished)
phase("ensure_partitions", last_week_missing)


@case
def phase_retain(play: Play) -> Script:
    """Step by step, a week goes; whatever has gone of it, nobody takes its run for one that has not ended."""
    make_week(play.lane)
    run_id = play.finished(queue="one", concurrency_key="c")
    gone = age_run(play.lane, run_id)
    play.acknowledged.discard(run_id)
    step = partial(play.storage.maintenance.retain, keep_for=timedelta(days=90), limit=10)

    def act() -> None:
        while step().more:
            pass

    yield act
    record = play.lane.storage.runs.get_run(gone)
    # What cannot be detached rests, and the pass goes on.
    assert record is None or record.status is Status.SUCCEEDED
    assert [finding for finding in play.stage.audit.check() if not finding.holds] == []
    wake(play.lane)
    retain_all(play.lane)
    yield None
    assert play.lane.storage.runs.get_run(gone) is None


@case
def a_detach_that_is_refused(play: Play) -> Script:
    """The week rests, and what the database said of it is kept."""
    week = make_week(play.lane)
    names = {"parent": "event", "part": f"event_{week}", "sqlstate": "55000", "message": "no"}
    play.lane.storage.maintenance.retain(keep_for=timedelta(days=90), limit=10)
    yield lambda: play.storage.session().run("detach_failed", names)


@case
def tick(play: Play) -> Script:
    """All phases in a row, and the note of it."""
    # Weeks outlive a play: else the first would find what those before it have left.
    wake(play.lane)
    retain_all(play.lane)
    timers(play)
    yield lambda: play.doomed.tick()


# Operating


@case
def cancel_what_waits(play: Play) -> Script:
    """Its slot is another's."""
    first, _ = play.trigger(queue="one"), play.trigger(queue="one")
    outcome: Outcome = yield lambda: play.doomed.runs.cancel(first)
    yield None
    assert not outcome.is_done or play.status(first) is Status.CANCELLED


@case
def cancel_what_runs(play: Play) -> Script:
    first = play.trigger(queue="one")
    play.lane.claim(first)
    outcome: Outcome = yield lambda: play.doomed.runs.cancel(first)
    yield None
    assert not outcome.is_done or play.status(first) is Status.CANCELLED


@case
def cancel_many(play: Play) -> Script:
    runs = [play.trigger(queue=queue) for queue in ("one", "one", "main")]
    outcome: Outcome = yield lambda: play.doomed.runs.cancel_many(everything=True)
    yield None
    assert not outcome.is_done or {play.status(run_id) for run_id in runs} == {Status.CANCELLED}


@case
def retry(play: Play) -> Script:
    """Asked again by whoever got no answer, it is one retry."""
    run_id = play.failed()
    outcome: Outcome = yield lambda: play.doomed.runs.retry(run_id)
    if not outcome.is_done:
        with suppress(RunlaneError):
            play.rest.runs.retry(run_id)
    yield None
    assert len(play.children(run_id)) == 1


@case
def retry_many(play: Play) -> Script:
    runs = [play.failed(queue="one") for _ in range(2)]
    yield lambda: play.doomed.runs.retry_many(everything=True)
    with suppress(RunlaneError):
        play.rest.runs.retry_many(everything=True)
    yield None
    # The retries fail as what they retry did, and may have been retried in their turn; what is retried is so once.
    assert [len(play.children(run_id)) for run_id in runs] == [1, 1]


@case
def rerun(play: Play) -> Script:
    run_id = play.finished()
    outcome: Outcome = yield lambda: play.doomed.runs.rerun(run_id)
    yield None
    assert len(play.children(run_id)) in ((1,) if outcome.is_done else (0, 1))


@case
def reschedule(play: Play) -> Script:
    run_id = play.trigger(queue="one")
    play.trigger(queue="one")
    yield lambda: play.doomed.runs.reschedule(run_id, datetime.now(UTC) + HOUR)


@case
def prune(play: Play) -> Script:
    gone, kept = play.finished(queue="one"), play.trigger(queue="one")
    play.acknowledged.discard(gone)
    outcome: Outcome = yield lambda: play.doomed.runs.prune(older_than="0s")
    yield None
    assert play.runs() in ((1,) if outcome.is_done else (1, 2))
    assert play.status(kept) is Status.SUCCEEDED


@case
def reset_an_idempotency_key(play: Play) -> Script:
    play.trigger(idempotency_key="k", idempotency_ttl="1d")
    outcome: Outcome = yield lambda: play.doomed.idempotency_keys.reset(play.work, "k")
    if outcome.is_done:
        play.trigger(idempotency_key="k")
        assert play.runs() == 2


@case
def pause_and_resume(play: Play) -> Script:
    for queue in ("one", "one", "main"):
        play.trigger(queue=queue)

    def act() -> None:
        for queue in ("one", "main"):
            play.doomed.queues.pause(queue)
        for queue in ("one", "main"):
            play.doomed.queues.resume(queue)

    yield act
    for queue in ("one", "main"):
        play.rest.queues.resume(queue)


@case
def weigh_a_tenant(play: Play) -> Script:
    play.trigger(tenant="t", queue="one")
    yield lambda: play.doomed.queues.set_weight("one", "t", 3)


@case
def change_policies(play: Play) -> Script:
    """Limits raised, lowered, set and lifted; what they free is given out at once."""
    for queue in ("one", "one", "one", "total", "total", "main", "main"):
        play.trigger(queue=queue)
    changed = [Queue("main", default=True, concurrency_limit=1), Queue("one", concurrency_limit=2), Queue("total"), *QUEUES[3:]]
    yield lambda: play.process(play.doomed_lane, queues=changed).queues.put_in_force(actor="ann")


# Schedules


def scheduled(play: Play) -> tuple[Runlane, Runlane]:
    """The doomed process and the rest, of a code with a schedule."""

    def nightly() -> Task[str, str]:
        @task("nightly", schedules=[Schedule("nightly", every=quiet(datetime.now(UTC)).every, payload="p")])
        def nightly(payload: str, ctx: Context) -> str:
            play.tries[ctx.run_id] += 1
            return payload

        return nightly

    tasks = (*play.tasks, nightly())
    doomed, play.rest = play.process(play.doomed_lane, tasks=tasks), play.process(play.rest.lane, tasks=tasks)
    return doomed, play.rest


@case
def put_schedules_in_force(play: Play) -> Script:
    """And their next fires become runs, each once."""
    doomed, rest = scheduled(play)
    yield lambda: doomed.schedules.put_in_force(actor="ann")
    rest.schedules.put_in_force(actor="ann")
    yield None
    assert play.lane.value("SELECT count(*) = count(DISTINCT fire_at) FROM runlane.schedule_fire")


@case
def phase_materialize_schedules(play: Play) -> Script:
    doomed, rest = scheduled(play)
    rest.schedules.put_in_force(actor="ann")
    play.lane.connection.execute(b"UPDATE runlane.schedule SET decided_until = now() - interval '1 day', look_at = now()")
    yield lambda: PHASES[0].step(doomed._upkeep)
    yield None
    assert play.lane.value("SELECT count(*) = count(DISTINCT fire_at) FROM runlane.schedule_fire")


@case
def pause_and_resume_a_schedule(play: Play) -> Script:
    doomed, rest = scheduled(play)
    rest.schedules.put_in_force(actor="ann")

    def act() -> None:
        doomed.schedules.pause("nightly", actor="ann")
        doomed.schedules.resume("nightly", actor="ann")

    yield act


@case
def trigger_a_schedule(play: Play) -> Script:
    doomed, rest = scheduled(play)
    rest.schedules.put_in_force(actor="ann")
    outcome: Outcome = yield lambda: doomed.schedules.trigger("nightly")
    if outcome.is_done:
        play.acknowledge(outcome.value)


# Reading


@case
def read(play: Play) -> Script:
    """What only looks."""
    doomed, rest = scheduled(play)
    rest.schedules.put_in_force(actor="ann")
    run_id = play.finished(idempotency_key="k", idempotency_ttl="1d")
    session = play.storage.session()
    audit, health = PostgresAudit(session), PostgresHealth(session)
    reads: list[Callable[[], Any]] = [
        lambda: doomed.runs.get(run_id),
        lambda: doomed.runs.list(),
        lambda: doomed.runs.events(run_id),
        lambda: doomed.runs.find_current(play.work, idempotency_key="k"),
        doomed.queues.stats,
        doomed.schedules.list,
        doomed.start,
        audit.check,
        audit.run_counts,
        audit.history_counts,
        lambda: audit.waits(["k"]),
        audit.holders,
        *(
            getattr(health, part)
            for part in ("server", "schema", "horizon", "tables", "id_ages", "partition_gaps", "upkeep", "stuck_weeks")
        ),
    ]

    def act() -> None:
        for look in reads:
            with suppress(RunlaneError):
                look()

    yield act


@case
def make_timers_due(play: Play) -> Script:
    """What only tests do."""
    run_id = play.trigger(delay="1h")
    play.trigger(delay="2h")
    aging = PostgresAging(play.storage.session())

    def act() -> None:
        aging.make_due([run_id])
        aging.make_earliest_due()

    yield act
