"""Processes that work a queue against one database, as Lambdas would: by wakeups, without a tick."""

from __future__ import annotations

import json
import multiprocessing
import queue as queues
import random
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.ports.stores import ClaimedRun, Wakeup
from tests.postgres.factories import LEASE, ending, ids, new_run, settlement

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


def contend(barrier: Any, dsn: str, names: Sequence[str], keys: int, claims: int, seed: int) -> None:
    """Trigger, claim and settle in small random batches, with failures, releases and hand-backs among them."""
    rng = random.Random(seed)
    with closing(PostgresStorage(dsn)) as storage:
        storage.queues.read_policies()
        barrier.wait(60)
        for name in rng.sample(names, len(names)):
            _contend_for(storage, name, keys, claims, rng)


def _contend_for(storage: PostgresStorage, queue: str, keys: int, claims: int, rng: random.Random) -> None:
    waiting, asked = list[RunId](), 0
    while asked < claims:
        new = [new_run(queue, concurrency_key=f"k{rng.randrange(keys)}") for _ in range(rng.randint(1, 4))]
        waiting += ids(storage.triggers.trigger_runs(new, eager=True).wakeups)
        batch, waiting = waiting[:5], waiting[5:]
        claimed = storage.deliveries.claim_runs(batch, lease_for=LEASE, worker="w")
        more = storage.deliveries.claim_oldest([queue], limit=2, lease_for=LEASE, worker="w")
        attempts = [*claimed.claims, *more.claims]
        settled = storage.deliveries.settle_runs([_end(claim, rng) for claim in attempts])
        assert not settled.refused
        waiting += ids([*claimed.wakeups, *more.wakeups, *settled.wakeups])
        asked += max(1, len(attempts))


def _end(claim: ClaimedRun, rng: random.Random) -> Any:
    kind = rng.choices([OutcomeKind.SUCCEEDED, OutcomeKind.RETRY, OutcomeKind.RELEASED, OutcomeKind.HANDED_BACK], [12, 2, 2, 1])[0]
    return ending(claim, kind)


def trigger_in_turn(barrier: Any, dsn: str, keys: Sequence[str], turns: int, seed: int) -> None:
    """Trigger each singleton key so many times, in an order of this process's own; payloads number its turns."""
    rng = random.Random(seed)
    with closing(PostgresStorage(dsn)) as storage:
        storage.queues.read_policies()
        barrier.wait(60)
        for turn in range(turns):
            for key in rng.sample(keys, len(keys)):
                payload = json.dumps({"process": seed, "turn": turn})
                new = new_run("work", singleton_key=key, singleton_mode="latest", payload=payload)
                assert not storage.triggers.trigger_runs([new], eager=True).wakeups


class Traffic:
    """Producers and workers on threads, joined by a queue of wakeups that delivers out of order and never ticks."""

    def __init__(self, dsn: str, queue: str, expected: int) -> None:
        self._dsn = dsn
        self._queue = queue
        self._expected = expected
        self._wakeups: queues.SimpleQueue[list[RunId]] = queues.SimpleQueue()
        self._ended: list[RunId] = []

    def produce(self, runs: int, keys: int) -> None:
        with closing(PostgresStorage(self._dsn)) as storage:
            for start in range(0, runs, 30):
                new = [new_run(self._queue, concurrency_key=f"k{place % keys}") for place in range(start, min(start + 30, runs))]
                batch = storage.triggers.trigger_runs(new, eager=True)
                self._publish([*batch.wakeups, *storage.triggers.dispatch(batch.starved_queues)])

    def work(self, patience: float = 10) -> None:
        """Claim, settle, publish what that frees, until all expected runs have ended."""
        rng = random.Random(0)
        with closing(PostgresStorage(self._dsn)) as storage:
            while len(self._ended) < self._expected:
                self._turn(storage, self._receive(patience), rng)
        self._wakeups.put([])

    def _turn(self, storage: PostgresStorage, woken: list[RunId], rng: random.Random) -> None:
        rng.shuffle(woken)
        claimed = storage.deliveries.claim_runs(woken, lease_for=LEASE, worker="w")
        settled = storage.deliveries.settle_runs([settlement(claim) for claim in claimed.claims])
        self._ended += [run.run_id for run in settled.settled]
        self._publish([*claimed.wakeups, *settled.wakeups])

    def _publish(self, wakeups: Sequence[Wakeup]) -> None:
        for start in range(0, len(wakeups), 25):
            self._wakeups.put(ids(wakeups[start : start + 25]))

    def _receive(self, patience: float) -> list[RunId]:
        """Up to fifty wakeups; no wakeup for so long is a lost one."""
        found = self._wakeups.get(timeout=patience)
        while len(found) < 50 and not self._wakeups.empty():
            with suppress(queues.Empty):
                found += self._wakeups.get_nowait()
        return found
