"""A batch of successes on a queue of limited partitions ends by a shorter way, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runlane.adapters.postgres import delivery
from runlane.domain.queue import Queue
from runlane.ports.stores import ClaimedRun
from tests.postgres.factories import Lane, ids, new_run, settlement

pytestmark = pytest.mark.postgres

KEYS = ("a", "a", "a", "b", "b", "c", "a", "b", "a", "c", "a", "d")
STATE = {
    "partition": "SELECT tenant, concurrency_key, state, waiting, occupied, slot_seq FROM runlane.partition ORDER BY 1, 2",
    "counters": "SELECT sum(waiting), sum(dispatched), sum(running) FROM runlane.queue_counter",
    "event": """
        SELECT r.payload::text, e.seq, e.type, e.attempt, e.slot_seq, e.occupied, e.actor, e.data::text, e.partition_id IS NULL
        FROM runlane.event e JOIN runlane.run r USING (run_id) ORDER BY r.payload::text::int, e.seq""",
    "dispatch": """
        SELECT r.payload::text, d.seq, d.status, d.attempt, d.failures, d.expiries, d.expires_at - d.dispatched_at, d.publish_status
        FROM runlane.dispatch d JOIN runlane.run r USING (run_id) ORDER BY d.dispatch_seq""",
    "outcome": """
        SELECT r.payload::text, o.status, o.attempt, o.failures, o.seq, o.result::text
        FROM runlane.outcome o JOIN runlane.run r USING (run_id) ORDER BY r.payload::text::int""",
}
Twist = Callable[[Lane, list[ClaimedRun]], list[ClaimedRun]]


def nothing(_: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    return claims


def one_is_cancelled(lane: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    lane.cancel(claims[1].run_id)
    return claims


def one_has_lost_its_lease(_: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    return [claims[0]._replace(token="00000000-0000-4000-8000-000000000000"), *claims[1:]]


def all_have_lost_theirs(_: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    return [claim._replace(token="00000000-0000-4000-8000-000000000000") for claim in claims]


def one_alone(_: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    return claims[:1]


def a_key_is_paused(lane: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    lane.connection.execute("UPDATE runlane.partition SET paused_at = now() WHERE concurrency_key = 'a'")
    return claims


def a_tenant_is_paused(lane: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    lane.connection.execute("UPDATE runlane.partition SET tenant_paused_at = now() WHERE concurrency_key = 'b'")
    return claims


def the_limit_is_lowered(lane: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    lane.connection.execute("UPDATE runlane.queue SET concurrency_limit = 1")
    return claims


def the_limit_is_raised(lane: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    lane.connection.execute("UPDATE runlane.queue SET concurrency_limit = 4")
    return claims


def the_window_is_full(lane: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    lane.connection.execute("UPDATE runlane.queue SET dispatch_window = 2")
    return claims


def the_queue_is_paused(lane: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    lane.connection.execute("UPDATE runlane.queue SET paused_at = now()")
    return claims


def a_count_is_wrong(lane: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    lane.connection.execute("UPDATE runlane.partition SET waiting = waiting + 5 WHERE concurrency_key = 'a'")
    return claims


def someone_has_recorded_a_run(lane: Lane, claims: list[ClaimedRun]) -> list[ClaimedRun]:
    lane.trigger(new_run("work", concurrency_key="b", payload="100"), eager=False)
    return claims


TWISTS = [
    nothing, one_is_cancelled, one_has_lost_its_lease, all_have_lost_theirs, one_alone, a_key_is_paused, a_tenant_is_paused,
    the_limit_is_lowered, the_limit_is_raised, the_window_is_full, the_queue_is_paused, a_count_is_wrong, someone_has_recorded_a_run,
]  # fmt: skip


@pytest.mark.parametrize("tenants", [False, True], ids=["keys", "tenants"])
@pytest.mark.parametrize("twist", TWISTS, ids=[twist.__name__ for twist in TWISTS])
def test_the_shorter_way_leaves_the_same_rows(lane: Lane, twist: Twist, tenants: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, ends = delivery.encode_settlements, []
    for plain in (True, False):
        monkeypatch.setattr(delivery, "encode_settlements", lambda done, plain=plain: encode(done) | ({} if plain else {"plain": False}))
        ends.append(_played(lane, twist, tenants))
        _clear(lane)
    if twist is one_is_cancelled:
        # It ends after the others, whose slots have been given away by then.
        for end in ends:
            end["event"] = [(*row[:4], *row[6:]) for row in end["event"]]
    assert ends[0] == ends[1]


def _played(lane: Lane, twist: Twist, tenants: bool) -> dict[str, Any]:
    """Twelve runs on limit 2, all that start are settled in one batch; what is left in the tables, and what was answered."""
    lane.queues(Queue("work", concurrency_limit=2))
    made = [
        new_run("work", concurrency_key=key, tenant=f"t{number % 2}" if tenants else None, payload=str(number))
        for number, key in enumerate(KEYS)
    ]
    batch = lane.trigger(*made)
    numbers = {run.run_id: number for number, run in enumerate(batch.runs)}
    claims = list(lane.claim(*ids(batch.wakeups)).claims)
    assert len(claims) > 5
    settled = lane.settle(*map(settlement, twist(lane, claims)))
    found: dict[str, Any] = {what: lane.connection.execute(query.encode()).fetchall() for what, query in STATE.items()}
    found["settled"] = sorted((numbers[one.run_id], one.status) for one in settled.settled)
    found["refused"] = sorted(numbers[one] for one in settled.refused)
    found["wakeups"] = [(numbers.get(one.run_id), *one[1:]) for one in settled.wakeups]
    return found


def _clear(lane: Lane) -> None:
    for table in ("run", "event", "outcome", "dispatch", "waiting", "lease", "inbox", "partition", "tenant"):
        lane.connection.execute(f"DELETE FROM runlane.{table}".encode())
    lane.connection.execute("UPDATE runlane.queue SET paused_at = NULL, dispatch_window = 1000, concurrency_limit = 2")
    lane.connection.execute("UPDATE runlane.queue_counter SET waiting = 0, dispatched = 0, running = 0, room = 0")
