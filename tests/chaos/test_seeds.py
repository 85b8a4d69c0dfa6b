"""The short form of `python -m tests.chaos.seeds`."""

from __future__ import annotations

import pytest

from tests.chaos.seeds import play
from tests.chaos.stage import LEASE, TICK, Servers, percentile

pytestmark = [pytest.mark.postgres, pytest.mark.sqs, pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(300)]
SLACK = 0.5
"""Seconds that a tick may take until it comes to leases."""


@pytest.mark.parametrize("seed", [1, 2], ids=["through the transport", "inline"])
def test_lost_doubled_and_late_wakeups_and_a_worker_killed_every_second_lose_nothing(running: Servers, seed: int) -> None:
    found = play(running, seed, 500)
    assert found.kills >= 3
    assert sum(found.statuses.values()) == found.runs
    assert percentile(found.recoveries.after_kill, 0.99) <= LEASE + TICK + SLACK
