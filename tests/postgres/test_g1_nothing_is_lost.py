"""G1: a run that trigger returned ends, or stays visibly waiting, whatever is lost, doubled or killed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from itertools import pairwise

import psycopg
import pytest

from runlane.adapters.local.postgres import LocalPostgres
from runlane.adapters.postgres import connection as sessions
from runlane.adapters.postgres.migrate import migrate
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import UnavailableError
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.run import Status
from runlane.ports.stores import PublishMark, PublishResult
from tests.postgres.factories import LEASE, Lane, at_once, ids, new_run, settlement
from tests.postgres.workers import Traffic

pytestmark = pytest.mark.postgres
LOOK_AHEAD = timedelta(minutes=3)
PRODUCERS, RUNS_EACH, WORKERS, KEYS = 3, 3000, 2, 20


@pytest.mark.parametrize("limit", [None, 1, 3], ids=["unlimited", "limit1", "limit3"])
def test_no_wakeup_is_lost_between_producers_and_workers(lane: Lane, dsn: str, limit: int | None) -> None:
    """No tick: only what trigger, claim and settle hand on. Every run ends and no partition is left asleep."""
    runs_each = RUNS_EACH if limit == 3 else RUNS_EACH // 6
    lane.queues(Queue("work", concurrency_limit=limit, dispatch_window=50))
    traffic = Traffic(dsn, "work", PRODUCERS * runs_each)
    at_once(*[lambda: traffic.produce(runs_each, KEYS)] * PRODUCERS, *[traffic.work] * WORKERS)
    assert lane.value("SELECT count(*) FROM runlane.outcome WHERE status = 'succeeded'") == PRODUCERS * runs_each
    (stats,) = lane.storage.queues.stats(["work"])
    assert (stats.waiting, stats.dispatched, stats.running, dict(stats.blocked)) == (0, 0, 0, {})


@pytest.fixture(params=[None, 1], ids=["unlimited", "limit1"])
def queue(request: pytest.FixtureRequest, lane: Lane) -> str:
    lane.queues(Queue("work", concurrency_limit=request.param, dispatch_timeout="2m"))
    return "work"


def test_a_wakeup_that_could_not_be_published_is_published_by_the_tick(lane: Lane, queue: str) -> None:
    run_id = lane.trigger_one(queue)
    assert lane.storage.maintenance.claim_unpublished(limit=10).wakeups == ()
    lane.storage.triggers.mark_published([PublishMark(PublishResult(run_id, published=False))])
    assert ids(lane.storage.maintenance.claim_unpublished(limit=10).wakeups) == [run_id]
    assert lane.storage.maintenance.claim_unpublished(limit=10).wakeups == ()


def test_a_wakeup_whose_publisher_died_is_published_by_the_tick(lane: Lane, queue: str) -> None:
    run_id = lane.trigger_one(queue)
    lane.age_publication(run_id)
    assert ids(lane.storage.maintenance.claim_unpublished(limit=10).wakeups) == [run_id]


def test_a_published_wakeup_is_not_published_again(lane: Lane, queue: str) -> None:
    run_id = lane.trigger_one(queue)
    lane.storage.triggers.mark_published([PublishMark(PublishResult(run_id, published=True))])
    lane.age_publication(run_id)
    assert lane.storage.maintenance.claim_unpublished(limit=10).wakeups == ()


def test_a_mark_that_comes_late_speaks_of_its_own_wakeup_only(lane: Lane, queue: str) -> None:
    """The tick has taken the run up since, and may have died before it published."""
    run_id = lane.trigger_one(queue)
    lane.age_publication(run_id)
    assert ids(lane.storage.maintenance.claim_unpublished(limit=10).wakeups) == [run_id]
    lane.storage.triggers.mark_published([PublishMark(PublishResult(run_id, published=True), age=10.0)])
    lane.age_publication(run_id)
    assert ids(lane.storage.maintenance.claim_unpublished(limit=10).wakeups) == [run_id]


def test_a_mark_that_waits_for_a_login_speaks_of_its_own_wakeup_only(
    lane: Lane, queue: str, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the run was claimed, failed, and was dispatched again by a worker that dies before it publishes."""
    run_id = lane.trigger_one(queue)

    def late(conninfo: str, connect: Callable[[str], psycopg.Connection] = sessions.connect) -> psycopg.Connection:
        lane.connection.execute("SELECT pg_sleep(0.02)")
        lane.connection.execute("UPDATE runlane.dispatch SET publish_claimed_at = clock_timestamp()")
        return connect(conninfo)

    with closing(PostgresStorage(dsn)) as storage, monkeypatch.context() as patched:
        patched.setattr(sessions, "connect", late)
        storage.triggers.mark_published([PublishMark(PublishResult(run_id, published=True))])
    assert lane.value("SELECT publish_status FROM runlane.dispatch") == "claimed"


def test_a_lost_wakeup_expires_to_its_old_place_with_a_doubling_timeout(lane: Lane, queue: str) -> None:
    run_id = lane.trigger_one(queue, concurrency_key="k")
    younger = lane.trigger_one(queue, concurrency_key="k")
    allowed = []
    for _ in range(7):
        allowed.append(lane.value("SELECT expires_at - dispatched_at FROM runlane.dispatch WHERE run_id = %s", run_id))
        lane.age_dispatch(run_id)
        assert run_id in ids(lane.storage.maintenance.expire_dispatches(limit=10).wakeups)
    assert allowed == [min(timedelta(minutes=2) * 2**expiries, timedelta(hours=1)) for expiries in range(7)]
    assert lane.events(run_id).count("run.dispatch_expired") == 7
    assert lane.claim_one(run_id).attempt == 1
    assert lane.status(younger) is Status.QUEUED


def test_a_claim_ends_the_row_of_expiries(lane: Lane, queue: str) -> None:
    run_id = lane.trigger_one(queue)
    lane.age_dispatch(run_id)
    lane.storage.maintenance.expire_dispatches(limit=10)
    claim = lane.claim_one(run_id)
    lane.age_lease(run_id)
    lane.settle(settlement(claim, kind=OutcomeKind.LEASE_EXPIRED, delay=timedelta(0)))
    lane.storage.maintenance.due_timers(look_ahead=LOOK_AHEAD, limit=10)
    assert lane.value("SELECT expires_at - dispatched_at FROM runlane.dispatch") == timedelta(minutes=2)


def test_two_ticks_at_once_do_everything_once(lane: Lane, other_storage: PostgresStorage, queue: str) -> None:
    lost = ids(lane.trigger(*(new_run(queue, concurrency_key=f"k{place}") for place in range(20))).wakeups)
    timers = [lane.trigger_one(queue, concurrency_key=f"t{place}", delay=timedelta(hours=1)) for place in range(20)]
    joined = ids_of_deferred(lane, queue, 20)
    lane.age_dispatch(*lost)
    for run_id in timers:
        lane.age_timer(run_id)
    found = at_once(lambda: tick(lane.storage), lambda: tick(other_storage))
    assert sorted([*found[0], *found[1]]) == sorted([*lost, *timers, *joined])
    for run_id in lost:
        assert lane.events(run_id).count("run.dispatch_expired") == 1
    for run_id in [*timers, *joined]:
        assert lane.events(run_id).count("run.dispatched") == 1


@pytest.mark.parametrize("died_in", ["trigger", "claim", "settle"])
def test_a_process_that_dies_before_its_commit_changed_nothing(lane: Lane, dsn: str, queue: str, died_in: str) -> None:
    run_id = lane.trigger_one(queue)
    claim = lane.claim_one(run_id) if died_in == "settle" else None
    before = (lane.events(run_id), lane.status(run_id), lane.storage.queues.stats([queue]))
    statement, parameters = {
        "trigger": ("trigger_runs_v1(%s, true)", ('[{"ord":1,"task":"t","queue":"work","payload":{}}]',)),
        "claim": ("claim_runs_v1(%s::uuid[], '1 minute', 'w')", ([run_id],)),
        "settle": (
            "settle_runs_v1(%s, %s::uuid[])",
            (f'[{{"run_id":"{run_id}","token":"{claim and claim.token}","kind":"succeeded"}}]', [run_id]),
        ),
    }[died_in]
    with psycopg.connect(dsn) as dying:
        dying.execute(f"SELECT * FROM runlane.{statement}".encode(), parameters)
        assert dying.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").fetchone() == (True,)
        pid = dying.execute("SELECT pg_backend_pid()").fetchone()
        lane.connection.execute("SELECT pg_terminate_backend(%s, 5000)", pid)
        with pytest.raises(psycopg.OperationalError):
            dying.execute("SELECT 1")
    after = (lane.events(run_id), lane.status(run_id), lane.storage.queues.stats([queue]))
    assert [*after[:2], after[2][0].dispatched, after[2][0].running] == [*before[:2], before[2][0].dispatched, before[2][0].running]
    assert lane.succeed(claim or lane.claim_one(run_id)).settled


def test_a_run_that_kills_its_worker_again_and_again_ends_failed(lane: Lane, queue: str) -> None:
    run_id = lane.trigger_one(queue, max_attempts=3)
    for attempt in (1, 2, 3):
        claim = lane.claim_one(run_id)
        assert claim.attempt == attempt
        lane.age_lease(run_id)
        lane.settle(settlement(claim, kind=OutcomeKind.LEASE_EXPIRED, delay=timedelta(0), final=attempt == 3))
    assert lane.status(run_id) is Status.FAILED


def test_what_was_triggered_survives_a_killed_server(server: LocalPostgres) -> None:
    with LocalPostgres(major=server.binaries.major) as mortal:
        with psycopg.connect(mortal.socket_dsn, autocommit=True) as connection:
            migrate(connection, schema="runlane", environment="test")
        storage = PostgresStorage(mortal.socket_dsn)
        storage.queues.write_policies([Queue("work", concurrency_limit=1)], actor=None)
        first, second = storage.triggers.trigger_runs([new_run("work"), new_run("work")], eager=True).runs
        (claim,) = storage.deliveries.claim_runs([first.run_id], lease_for=LEASE, worker="w").claims
        mortal.kill()
        with pytest.raises(UnavailableError):
            storage.deliveries.settle_runs([settlement(claim)])
        mortal.restart()
        settled = storage.deliveries.settle_runs([settlement(claim)])
        assert ids(settled.wakeups) == [second.run_id]
        storage.close()


def tick(storage: PostgresStorage) -> list[str]:
    store = storage.maintenance
    phases = [
        store.due_timers(look_ahead=LOOK_AHEAD, limit=100),
        store.fold_recorded(limit=100),
        store.expire_dispatches(limit=100),
        store.expire_deadlines(limit=100),
        store.dispatch_queues(limit=100),
        store.claim_unpublished(limit=100),
        store.ensure_partitions(),
    ]
    return [run_id for phase in phases for run_id in ids(phase.wakeups)]


def ids_of_deferred(lane: Lane, queue: str, count: int) -> list[str]:
    batch = lane.trigger(*(new_run(queue, concurrency_key=f"d{place}") for place in range(count)), eager=False)
    assert batch.wakeups == ()
    return [run.run_id for run in batch.runs]


def test_ids_grow_with_time(lane: Lane, queue: str) -> None:
    made = [run.run_id for _ in range(20) for run in lane.trigger(*[new_run(queue)] * 5, eager=False).runs]
    assert all(one < next_one for one, next_one in pairwise(made))


def test_leases_that_could_not_be_recovered_can_be_passed_over(lane: Lane) -> None:
    lane.queues(Queue("work"))
    claimed = lane.claim(*(lane.trigger_one("work") for _ in range(3))).claims
    lane.age_lease(*ids(claimed))
    found = lane.storage.maintenance.expired_leases(limit=2)
    assert len(found) == 2
    (left,) = lane.storage.maintenance.expired_leases(limit=2, without=[lease.run_id for lease in found])
    assert {left.run_id, *(lease.run_id for lease in found)} == set(ids(claimed))
