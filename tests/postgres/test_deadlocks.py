"""Transactions that want the same things in opposite order. A deadlock would surface as an error of one of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Protocol

import psycopg
import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.queue import Queue
from tests.postgres.factories import LEASE, Lane, at_once, ids
from tests.postgres.moves import (
    SOON,
    Move,
    Process,
    cancel_anything,
    change_policies,
    claim_anything,
    drain,
    expire_all,
    finish,
    join,
    join_as_successors,
    maintain,
    make_again,
    operate_on_anything,
    pause,
    runs_of,
    schedule_runs,
    succeed,
    trigger,
    trigger_in_a_hurry,
    trigger_plainly,
)

pytestmark = pytest.mark.postgres
ROUNDS = 12


class Contend(Protocol):
    def __call__(self, *moves: Move, rounds: int = ROUNDS) -> None: ...


@pytest.fixture(params=["unlimited", "limit2", "total5", "tenants"])
def shape(request: pytest.FixtureRequest, lane: Lane) -> str:
    limits = {"limit2": (2, None), "total5": (None, 5), "tenants": (2, None)}.get(request.param, (None, None))
    lane.queues(*(Queue(name, concurrency_limit=limits[0], total_limit=limits[1], dispatch_window=20) for name in ("a", "b")))
    return str(request.param)


@pytest.fixture
def contend(dsn: str, storages: Callable[[int], list[PostgresStorage]]) -> Iterator[Contend]:
    """Every move in a process of its own (as far as Postgres can tell), round after round from a common start."""
    with ExitStack() as opened:

        def play(*moves: Move, rounds: int = ROUNDS) -> None:
            processes = [
                Process(storage, opened.enter_context(psycopg.connect(dsn, autocommit=True, prepare_threshold=None)), random.Random(place))
                for place, storage in enumerate(storages(len(moves)))
            ]
            for _ in range(rounds):
                at_once(*(partial(move, process) for move, process in zip(moves, processes, strict=True)))

        yield play


def test_two_callers_triggering_in_opposite_order(contend: Contend, shape: str) -> None:
    contend(trigger(shape), trigger(shape, backwards=True), rounds=10)


def test_triggering_against_settling_in_reverse(contend: Contend, shape: str) -> None:
    contend(trigger(shape), trigger(shape, backwards=True), drain, drain)


def test_claims_of_overlapping_batches_in_opposite_order(lane: Lane, other_storage: PostgresStorage, shape: str) -> None:
    for _ in range(ROUNDS):
        found = ids(lane.trigger(*runs_of(shape)).wakeups)
        first, second = at_once(
            lambda found=found: lane.claim(*found),
            lambda found=found: other_storage.deliveries.claim_runs(found[::-1], lease_for=LEASE, worker="other"),
        )
        assert sorted(ids([*first.claims, *second.claims])) == sorted(found)
        lane.succeed(*first.claims, *second.claims)


def test_like_runs_that_all_succeed_against_all_that_interferes(contend: Contend, shape: str) -> None:
    contend(trigger_plainly(shape), trigger_plainly(shape), finish, finish, finish, cancel_anything, make_again(), rounds=20)


@pytest.mark.thorough
def test_like_runs_that_all_succeed_against_pauses_and_policies(contend: Contend, shape: str) -> None:
    contend(trigger_plainly(shape), finish, finish, cancel_anything, pause, change_policies, maintain, rounds=20)


@pytest.mark.thorough
def test_claims_with_and_without_dispatch_rows_against_settling_and_giving_back(contend: Contend, lane: Lane, shape: str) -> None:
    lane.trigger(*runs_of(shape) * 3)
    contend(claim_anything(), claim_anything(backwards=True), drain, trigger(shape), expire_all)


@pytest.mark.thorough
def test_cancelling_against_claim_and_settle(contend: Contend, lane: Lane, shape: str) -> None:
    lane.trigger(*runs_of(shape) * 3)
    contend(cancel_anything, cancel_anything, claim_anything(), drain, trigger(shape))


@pytest.mark.thorough
def test_cancelling_against_timers_that_fire(contend: Contend, shape: str) -> None:
    contend(cancel_anything, cancel_anything, maintain, trigger(shape, delay=SOON), drain)


@pytest.mark.thorough
def test_cancelling_and_settling_against_pausing(contend: Contend, lane: Lane, shape: str) -> None:
    lane.trigger(*runs_of(shape) * 2)
    contend(pause, pause, cancel_anything, claim_anything(), drain, trigger(shape), rounds=15)


@pytest.mark.thorough
def test_deadlines_of_two_ticks_against_settling(contend: Contend, shape: str) -> None:
    contend(trigger_in_a_hurry(shape), trigger_in_a_hurry(shape, backwards=True), drain, drain, maintain)


@pytest.mark.thorough
def test_operators_against_workers_and_ticks(contend: Contend, lane: Lane, shape: str) -> None:
    lane.trigger(*runs_of(shape) * 2)
    operators = [operate_on_anything(), operate_on_anything(backwards=True), make_again(), make_again(backwards=True)]
    contend(*operators, drain, maintain, claim_anything(), trigger(shape))


@pytest.mark.thorough
def test_folding_against_settling_and_joined_callers(contend: Contend, shape: str) -> None:
    contend(join(shape), join(shape), maintain, maintain, drain, cancel_anything)


@pytest.mark.thorough
def test_keys_taken_in_opposite_order_against_everything_that_ends_runs(contend: Contend, shape: str) -> None:
    keyed = [succeed(shape), succeed(shape, backwards=True), join_as_successors(shape)]
    contend(*keyed, drain, cancel_anything, claim_anything(), maintain, rounds=15)


@pytest.mark.thorough
def test_schedules_that_fire_and_change_against_everything_that_moves_runs(contend: Contend, shape: str) -> None:
    schedules = [schedule_runs(shape), schedule_runs(shape), schedule_runs(shape)]
    contend(*schedules, succeed(shape, backwards=True), drain, cancel_anything, maintain)
