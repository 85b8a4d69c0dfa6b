"""Processes that work a queue against one database, as Lambdas would: by wakeups, without a tick."""

from __future__ import annotations

import multiprocessing
import queue as queues
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.outcome import OutcomeKind
from runlane.ports.stores import ClaimedRun
from tests.postgres.factories import LEASE, ids, new_run, settlement

_SPAWN = multiprocessing.get_context("spawn")


def run_processes(target: Callable[..., None], arguments: Sequence[tuple[Any, ...]], timeout: float = 60) -> None:
    """Run `target` once for each tuple of arguments, in processes that start together; any failure fails the test."""
    barrier = _SPAWN.Barrier(len(arguments))
    processes = [_SPAWN.Process(target=target, args=(barrier, *given)) for given in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
    stuck = [process for process in processes if process.is_alive()]
    for process in stuck:
        process.kill()
    assert not stuck, "a process did not end in time"
    assert [process.exitcode for process in processes] == [0] * len(processes)


def contend(barrier: Any, dsn: str, queue: str, keys: int, claims: int, seed: int) -> None:
    """Trigger, claim and settle in small random batches, with failures, releases and hand-backs among them."""
    rng = random.Random(seed)
    storage = PostgresStorage(dsn)
    storage.queues.read_policies()
    barrier.wait(30)
    waiting, done = [], 0
    while done < claims:
        new = [new_run(queue, concurrency_key=f"k{rng.randrange(keys)}") for _ in range(rng.randint(1, 4))]
        waiting += ids(storage.triggers.trigger_runs(new, eager=True).wakeups)
        batch, waiting = waiting[:5], waiting[5:]
        claimed = storage.deliveries.claim_runs(batch, lease_for=LEASE, worker=f"w{seed}")
        more = storage.deliveries.claim_oldest([queue], limit=2, lease_for=LEASE, worker=f"w{seed}")
        attempts = [*claimed.claims, *more.claims]
        settled = storage.deliveries.settle_runs([_end(claim, rng) for claim in attempts])
        assert not settled.refused
        waiting += ids([*claimed.wakeups, *more.wakeups, *settled.wakeups])
        done += max(1, len(attempts))
    storage.close()


def _end(claim: ClaimedRun, rng: random.Random) -> Any:
    kind = rng.choices([OutcomeKind.SUCCEEDED, OutcomeKind.RETRY, OutcomeKind.RELEASED, OutcomeKind.HANDED_BACK], [12, 2, 2, 1])[0]
    return settlement(claim, kind, delay=None if kind is OutcomeKind.SUCCEEDED else timedelta(0))


def produce(barrier: Any, dsn: str, queue: str, runs: int, keys: int, wakeups: Any) -> None:
    storage = PostgresStorage(dsn)
    barrier.wait(30)
    for start in range(0, runs, 25):
        new = [new_run(queue, concurrency_key=f"k{place % keys}") for place in range(start, min(start + 25, runs))]
        batch = storage.triggers.trigger_runs(new, eager=True)
        sent = [*batch.wakeups, *storage.triggers.dispatch(batch.starved_queues)]
        wakeups.put(ids(sent))
    storage.close()


def work(barrier: Any, dsn: str, queue: str, wakeups: Any, finished: Any, expected: int) -> None:
    """Claim what is woken, settle it, publish what that frees; stop when all expected runs have ended."""
    storage = PostgresStorage(dsn)
    barrier.wait(30)
    mine: list[Any] = []
    while finished.value < expected:
        try:
            mine += wakeups.get(timeout=0.5 if not mine else 0)
        except queues.Empty:
            if not mine:
                continue
        batch, mine = mine[:50], mine[50:]
        claimed = storage.deliveries.claim_runs(batch, lease_for=LEASE, worker="w")
        settled = storage.deliveries.settle_runs([settlement(claim) for claim in claimed.claims])
        sent = ids([*claimed.wakeups, *settled.wakeups])
        wakeups.put(sent[len(sent) // 2 :])
        mine += sent[: len(sent) // 2]
        with finished.get_lock():
            finished.value += len(settled.settled)
    wakeups.cancel_join_thread()
    storage.close()
