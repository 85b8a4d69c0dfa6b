"""More workers than connections, and more runs at once than anybody could start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from runlane.adapters.local.postgres import LocalPostgres
from runlane.domain.queue import Queue
from tests.pooler import NEEDS_PGBOUNCER, Pooler
from tests.postgres.factories import Lane, at_once, ids, new_run
from tests.postgres.workers import Traffic

pytestmark = [pytest.mark.postgres, pytest.mark.thorough]
BURST = 200_000
CALL = 1_000
WINDOW = 500


@NEEDS_PGBOUNCER
@pytest.mark.parametrize("route", [pytest.param((18, False), id="pooled")], indirect=True)
@pytest.mark.parametrize("limit", [None, 2], ids=["unlimited", "limit2"])
def test_fifty_workers_share_two_connections_and_lose_nothing(lane: Lane, dsn: str, server: LocalPostgres, limit: int | None) -> None:
    workers, runs = 50, 3_000
    lane.queues(Queue("work", concurrency_limit=limit))
    with Pooler(server.socket_dsn, {"default_pool_size": 2, "max_client_conn": 200}) as pooler:
        traffic = Traffic(pooler.way(dsn), "work", runs)
        at_once(lambda: traffic.produce(runs, keys=40), *[lambda: traffic.work(patience=60)] * workers)
    assert lane.value("SELECT count(*) FROM runlane.outcome WHERE status = 'succeeded'") == runs
    assert lane.value("SELECT count(*) FROM runlane.event WHERE type = 'run.lease_expired'") == 0


@pytest.mark.parametrize("route", [pytest.param((18, False), id="direct")], indirect=True)
def test_a_burst_of_two_hundred_thousand_waits_in_order_and_nobody_waits_for_all_of_it(lane: Lane, storages: object) -> None:
    lane.queues(Queue("work", dispatch_window=WINDOW), Queue("other"))
    several = storages(4)  # type: ignore[operator]
    noisy = [new_run("work", tenant="noisy", concurrency_key="k")] * CALL
    with ThreadPoolExecutor(len(several)) as pool:
        calls = [pool.submit(several[call % len(several)].triggers.trigger_runs, noisy, eager=True) for call in range(BURST // CALL)]
        batches = [call.result() for call in calls]
    woken = [run_id for batch in batches for run_id in ids(batch.wakeups)]
    # What others took within a second is not seen by each: a window and one call of each of them.
    assert WINDOW <= lane.value("SELECT count(*) FROM runlane.dispatch") == len(woken) <= WINDOW + len(several) * CALL
    assert lane.value("SELECT count(*) FROM runlane.run") == BURST
    assert lane.trigger(new_run("other")).wakeups
    quiet = lane.trigger(new_run("work", tenant="quiet")).runs[0].run_id
    started = 0
    while quiet not in woken:
        batch, woken = woken[:100], woken[100:]
        started += len(batch)
        woken += ids(lane.succeed(*lane.claim(*batch).claims).wakeups)
    # Those that had been dispatched before, and not the backlog.
    assert started <= WINDOW + len(several) * CALL + 100
