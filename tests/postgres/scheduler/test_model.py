"""The SQL and a model of the scheduler agree, over ten thousand random operations, on who starts next; and faults in the SQL are seen.

A failure shows the seed, and the fewest operations after which the two differ. To try others: add to PLAYS.
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
from tests.postgres.scheduler.plays import Play, draw_play, draw_throttled_play, shorten

pytestmark = pytest.mark.postgres
Draw = Callable[[int, int], Play]
LENGTH = 100
PLAYS = [(draw_play, seed) for seed in range(80)] + [(draw_throttled_play, seed) for seed in range(20)]
PARTS = [(18, PLAYS[start : start + 10]) for start in range(0, len(PLAYS), 10)] + [(15, PLAYS[::12])]
FIRST = (0, 8)
"""The parts of the short suite: one without a throttle and one with it."""


@dataclass(frozen=True)
class Stage:
    """A database with a clock to be set, and the time that it shows first."""

    lane: Lane
    now: datetime

    def difference(self, play: Play) -> str | None:
        return play.difference(self.lane, self.now)


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


@pytest.mark.parametrize(
    ("major", "plays"),
    [
        pytest.param(major, plays, id=f"postgres{major}-{place}", marks=[] if place in FIRST else [pytest.mark.thorough])
        for place, (major, plays) in enumerate(PARTS)
    ],
)
def test_the_sql_starts_whom_the_model_starts(stages: Callable[[int], Stage], major: int, plays: Sequence[tuple[Draw, int]]) -> None:
    stage = stages(major)
    for draw, seed in plays:
        if stage.difference(draw(seed, LENGTH)) is not None:
            fewest = shorten(draw(seed, LENGTH), lambda play: stage.difference(play) is not None)
            pytest.fail(f"{draw.__name__}({seed}): {stage.difference(fewest)}\n{fewest}", pytrace=False)
    check_invariants(stage.lane.connection)


def test_ten_thousand_operations_are_compared() -> None:
    assert sum(len(draw(seed, LENGTH).operations) for draw, seed in PLAYS) == 10_000


@pytest.mark.thorough
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_model_sees_that(stages: Callable[[int], Stage], mutation: str) -> None:
    stage = stages(18)
    plays = reversed(PLAYS) if "throttle" in mutation else PLAYS
    with mutated(stage.lane.connection, *MUTATIONS[mutation]):
        assert any(stage.difference(draw(seed, LENGTH)) for draw, seed in plays)
