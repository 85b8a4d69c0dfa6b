"""A page of a list costs what it shows, whatever it filters by and however many runs there are."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.records import RunFilter
from runlane.domain.run import Source, Status
from tests.postgres.factories import Lane, ids, new_run, settlement
from tests.postgres.visits import WatchedStorage

pytestmark = pytest.mark.postgres
MANY, PAGE = 4000, 10
ROWS = MANY
"""The most that a page of ten may visit; joining it to all runs visits each of them many times."""


@pytest.fixture
def crowded(lane: Lane) -> Lane:
    """Many runs of others in every place, and a few of each kind that is asked for."""
    lane.queues(Queue("work", dispatch_window=MANY), Queue("other"))
    found = ids(lane.trigger(*(new_run("work", tenant=f"t{place % 50}") for place in range(MANY))).runs)
    ends = {OutcomeKind.FAILED: found[:1500], OutcomeKind.SUCCEEDED: found[1500:2500]}
    for kind, some in ends.items():
        lane.settle(*(settlement(claim, kind) for claim in lane.claim(*some).claims))
    rare = new_run("other", task="rare", tenant="rare", concurrency_key="rare")
    failed = ids(lane.trigger(*[rare] * 3).runs)
    lane.settle(*(settlement(claim, OutcomeKind.FAILED) for claim in lane.claim(*failed).claims))
    lane.again(failed[0], queue="other", task="rare", tenant="rare", concurrency_key="rare")
    lane.trigger(*(new_run("work", tenant="t1") for _ in range(500)))
    lane.connection.execute(b"ANALYZE")
    return lane


@pytest.mark.direct(reason="auto_explain is set for a session")
def test_every_filter_is_served_from_an_index(crowded: Lane, dsn: str) -> None:
    failed, queued = frozenset({Status.FAILED}), frozenset({Status.QUEUED, Status.RETRYING, Status.RUNNING})
    now = crowded.value("SELECT clock_timestamp()")
    asked = [
        *(RunFilter(), RunFilter(created_before=now), RunFilter(created_after=now - timedelta(hours=1), tenant="t1")),
        *(RunFilter(**one) for one in RARE),
        *(RunFilter(statuses=failed, **one) for one in [{}, *RARE]),
        *(RunFilter(statuses=queued, **one) for one in [{}, *RARE]),
        *(RunFilter(statuses=frozenset({Status.SUCCEEDED}), **one) for one in [{}, *RARE]),
    ]
    costs = {}
    with closing(WatchedStorage(dsn)) as storage:
        for one in asked:
            with storage.session.watching():
                storage.runs.list_runs(one, limit=PAGE, cursor=None)
            costs[one] = sum(storage.session.rows.values())

    assert {one: rows for one, rows in costs.items() if rows > ROWS} == {}
    assert min(costs.values()) > 0


RARE: tuple[dict[str, str], ...] = (
    {"task": "rare"},
    {"queue": "other"},
    {"tenant": "rare"},
    {"concurrency_key": "rare"},
    {"source": Source.RERUN},
)
