"""G6 by a worker and a tick in a process of their own, on a real SQS: what is due in seconds starts then, long before the next tick."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from runlane import Item
from tests.acceptance.failures.conftest import OpenStage
from tests.acceptance.failures.tasks import dozing, noop
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.sqs]

TICK = timedelta(minutes=10)
LATENESS = """
SELECT c.at - coalesce((e.data->>'due_at')::timestamptz, r.run_at) FROM runlane.event c JOIN runlane.run r USING (run_id)
LEFT JOIN runlane.event e ON e.run_id = c.run_id AND e.type = 'run.released'
WHERE c.type = 'run.claimed' AND (e.run_id IS NULL OR c.seq > e.seq)"""


def test_forty_timers_start_at_their_time_and_never_before_it(open_stage: OpenStage) -> None:
    """Hinted by their trigger, by the tick, which comes once, and by their own releases."""
    stage = open_stage()
    delays = range(1200, 2600, 100)
    for dispatch in ("eager", "deferred"):
        stage.runlane.trigger_many(noop, [Item(delay, delay=f"{delay}ms") for delay in delays], dispatch=dispatch)
    stage.runlane.trigger_many(dozing, range(150, 1350, 100))
    stage.spawn("--maintenance", "functions.maintenance.app:handler", "--tick-every", str(TICK.total_seconds()))
    until(lambda: stage.value("SELECT count(*) FROM runlane.outcome") == 40, timeout=120)
    with psycopg.connect(stage.dsn) as connection:
        lateness = [late for (late,) in connection.execute(LATENESS).fetchall()]
    assert len(lateness) == 40
    assert min(lateness) >= timedelta(0)
    assert max(lateness) < TICK / 2
