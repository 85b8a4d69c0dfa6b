"""What the model says a statement does, the statement does."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.postgres.factories import Lane
from tests.postgres.protocol.replay import QUEUE, walk

pytestmark = pytest.mark.postgres
LENGTH = 25


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("route", "seeds"),
    [
        pytest.param((18, False), range(10), id="postgres18"),
        pytest.param((18, False), range(10, 300), id="postgres18-all", marks=pytest.mark.thorough),
        pytest.param((15, False), range(300, 320), id="postgres15", marks=pytest.mark.thorough),
    ],
    indirect=["route"],
)
def test_the_sql_does_what_the_model_does(lane: Lane, seeds: range) -> None:
    lane.queues(QUEUE)
    taken: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        walk(lane, seed, LENGTH, taken)
    assert len({action for action, _ in taken}) >= 25
