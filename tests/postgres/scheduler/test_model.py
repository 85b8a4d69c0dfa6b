"""The SQL and a model of the scheduler agree, over ten thousand random operations, on who starts next; and faults in the SQL are seen.

A failure shows the seed, and the fewest operations after which the two differ. To try others: raise SEEDS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from functools import cache

import psycopg
import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from tests.postgres.conftest import Running
from tests.postgres.factories import Lane
from tests.postgres.invariants import check_invariants
from tests.postgres.scheduler.clock import install_clock
from tests.postgres.scheduler.mutations import MUTATIONS, mutated
from tests.postgres.scheduler.plays import draw_play, shorten

pytestmark = pytest.mark.postgres
LENGTH = 100
SEEDS = {18: range(100), 15: range(100, 110)}
PARTS = [(major, seeds[start : start + 10]) for major, seeds in SEEDS.items() for start in range(0, len(seeds), 10)]


@dataclass(frozen=True)
class Stage:
    """A database with a clock to be set, and the time that it shows first."""

    lane: Lane
    now: datetime

    def difference(self, seed: int) -> str | None:
        return draw_play(seed, LENGTH).difference(self.lane, self.now)


@pytest.fixture(scope="module")
def stages(running: Callable[[int], Running]) -> Iterator[Callable[[int], Stage]]:
    """The stage on a major version, prepared once."""
    with ExitStack() as opened:

        @cache
        def prepare(major: int) -> Stage:
            dsn = opened.enter_context(running(major).databases.lend())
            connection = opened.enter_context(psycopg.connect(dsn, autocommit=True))
            storage = opened.enter_context(closing(PostgresStorage(dsn)))
            return Stage(Lane(storage, connection), install_clock(connection))

        yield prepare


@pytest.mark.parametrize(("major", "seeds"), PARTS, ids=str)
def test_the_sql_starts_whom_the_model_starts(stages: Callable[[int], Stage], major: int, seeds: Sequence[int]) -> None:
    stage = stages(major)
    for seed in seeds:
        if stage.difference(seed) is not None:
            fewest = shorten(draw_play(seed, LENGTH), lambda play: play.difference(stage.lane, stage.now) is not None)
            pytest.fail(f"seed {seed}: {fewest.difference(stage.lane, stage.now)}\n{fewest}", pytrace=False)
        check_invariants(stage.lane.connection)


def test_ten_thousand_operations_are_compared() -> None:
    assert len(SEEDS[18]) * len(draw_play(0, LENGTH).operations) == 10_000


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_model_sees_that(stages: Callable[[int], Stage], mutation: str) -> None:
    stage = stages(18)
    with mutated(stage.lane.connection, *MUTATIONS[mutation]):
        assert any(stage.difference(seed) for seed in SEEDS[18])
