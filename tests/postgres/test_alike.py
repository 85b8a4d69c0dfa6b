"""Runs that differ in little are recorded by a shorter way, and nobody can tell."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from runlane.domain.queue import Queue, Throttle
from runlane.domain.run import Source
from runlane.ports.stores import NewRun, TriggerBatch
from tests.postgres.factories import Lane, new_run

pytestmark = pytest.mark.postgres

LOT: tuple[dict[str, Any], ...] = (
    {"payload": '{"n": 1}', "tenant": 'a "b" {c}, \\d', "concurrency_key": "NULL", "priority": 7},
    {"payload": '["\\u00e4", null]', "tenant": None, "concurrency_key": "{}", "priority": 0},
    {"payload": "null", "tenant": "", "concurrency_key": None, "priority": -600},
    {"payload": "12345678901234567890.5", "tenant": "ü🙂'%s", "concurrency_key": " ", "priority": 600},
)
SHARED: dict[str, Any] = {
    "max_attempts": 5,
    "start_timeout": timedelta(minutes=1, microseconds=3),
    "finish_timeout": timedelta(days=40),
    "actor": 'me "and" you',
    "trace": {"traceparent": "00-é"},
    "meta": {"k": [1, {"x": "ß"}]},
}
ROWS = """
SELECT r.task, q.name, r.tenant, r.concurrency_key, r.priority, r.max_attempts, r.run_at - r.created_at, r.payload::text,
       r.start_timeout, r.finish_timeout, r.actor, r.trace::text, r.meta::text, r.source,
       ARRAY(SELECT (e.seq, e.type, e.at - r.created_at, e.attempt, e.partition_id IS NULL, e.slot_seq, e.occupied, e.actor, e.data)::text
             FROM runlane.event e WHERE e.run_id = r.run_id ORDER BY e.seq),
       ARRAY(SELECT (d.priority, d.due_at - r.run_at, d.status, d.attempt, d.failures, d.seq, d.expiries, d.start_at IS NULL,
                     CASE WHEN d.start_at IS NULL THEN d.expires_at - r.created_at END, d.publish_status, d.publish_attempts,
                     d.publish_claimed_at - r.created_at, d.dispatched_at - r.created_at)::text
             FROM runlane.dispatch d WHERE d.run_id = r.run_id),
       (SELECT count(*) FROM runlane.waiting w WHERE w.run_id = r.run_id),
       ARRAY(SELECT (l.kind, l.at - r.created_at)::text FROM runlane.deadline l WHERE l.run_id = r.run_id ORDER BY 1)
FROM runlane.run r JOIN runlane.queue q USING (queue_id) ORDER BY r.run_id"""
QUEUES = (
    Queue("work"),
    Queue("work", concurrency_limit=2),
    Queue("work", total_limit=3),
    Queue("work", throttle=Throttle(2, "1s")),
    Queue("work", dispatch_window=2),
)


def lot() -> list[NewRun]:
    return [NewRun("noop", "work", **one, **SHARED) for one in LOT]


def told(batch: TriggerBatch) -> list[Any]:
    return [(one.outcome, one.status, one.payload_matches) for one in batch.runs]


@pytest.mark.parametrize("queue", QUEUES, ids=["unlimited", "limit", "total", "throttled", "window"])
def test_the_shorter_way_leaves_the_same_rows(lane: Lane, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    lane.queues(queue)
    found, answers = [], []
    for alike in (True, False):
        monkeypatch.setattr("runlane.adapters.postgres.trigger.are_alike", lambda runs, alike=alike: alike)
        batch = lane.storage.triggers.trigger_runs(lot(), eager=True)
        places = {one.run_id: place for place, one in enumerate(batch.runs)}
        sent = sorted((places[one.run_id], *one[1:4], one.hint, one.trace) for one in batch.wakeups)
        answers.append((told(batch), sent))
        found.append(lane.connection.execute(ROWS.encode()).fetchall())
        (stats,) = lane.storage.queues.stats(["work"])
        found[-1].append((stats.waiting, stats.dispatched))
        for table in ("run", "event", "dispatch", "waiting", "deadline", "partition", "tenant"):
            lane.connection.execute(f"DELETE FROM runlane.{table}".encode())
        lane.connection.execute(b"UPDATE runlane.queue_counter SET waiting = 0, dispatched = 0, room = 0")
        lane.connection.execute(b"UPDATE runlane.queue SET occupied = 0, slot_seq = 0")
    assert answers[0] == answers[1]
    assert found[0] == found[1]
    assert len(found[0]) == len(LOT) + 1


@pytest.mark.parametrize(
    "other",
    [
        {"delay": timedelta(seconds=5)},
        {"idempotency_key": "k", "payload_hash": "h"},
        {"singleton_key": "k"},
        {"source": Source.RUN_NOW},
    ],
    ids=["delay", "idempotency", "singleton", "source"],
)
def test_what_is_not_plain_goes_the_long_way(lane: Lane, other: dict[str, Any]) -> None:
    lane.queues(Queue("work"))
    owners = 1 if {"idempotency_key", "singleton_key"} & other.keys() else 3
    plain, special = new_run("work"), new_run("work", **other)
    for runs in ([special, plain], [plain, special], [special]):
        batch = lane.storage.triggers.trigger_runs(runs, eager=True)
        assert len(batch.runs) == len(runs)
    assert lane.value("SELECT count(*) FROM runlane.run") == owners + 2


def test_a_call_of_two_queues_is_not_alike(lane: Lane) -> None:
    lane.queues(Queue("work"), Queue("other"))
    batch = lane.storage.triggers.trigger_runs([new_run("work"), new_run("other")], eager=True)
    assert sorted(wakeup.queue for wakeup in batch.wakeups) == ["other", "work"]


def test_what_only_python_calls_equal_is_kept_apart(lane: Lane) -> None:
    lane.queues(Queue("work"))
    given = [{"sure": True}, {"sure": 1}, {"sure": 1.0}]
    batch = lane.storage.triggers.trigger_runs([new_run("work", meta=meta) for meta in given], eager=True)
    found = dict(lane.connection.execute("SELECT run_id::text, meta::text FROM runlane.run").fetchall())
    assert [found[one.run_id] for one in batch.runs] == [json.dumps(meta) for meta in given]


def test_ids_of_a_large_batch_are_in_order_and_random_to_the_last_digit(lane: Lane) -> None:
    lane.queues(Queue("work", dispatch_window=20_000))
    found = [run.run_id for run in lane.storage.triggers.trigger_runs([new_run("work")] * 10_000, eager=True).runs]
    assert found == sorted(found)
    assert {one[14] + one[19] for one in found} == {"78"}
    for place in (20, 24, 27, 28, 29, 35):
        assert {one[place] for one in found} == set("0123456789abcdef")


def test_the_window_holds_but_for_what_others_took_within_a_second(lane: Lane) -> None:
    lane.queues(Queue("work", dispatch_window=100))
    for _ in range(150):
        lane.trigger_one("work")
    (stats,) = lane.storage.queues.stats(["work"])
    assert stats.dispatched == 100
    assert stats.waiting == 50
