"""Faults of a scheduler that nobody notices by eye, each put into one function of the SQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

MUTATIONS: dict[str, tuple[str, str, str]] = {
    "a partition's turn costs nothing": ("dispatch_runs_v1", "vt = x.vt,", "vt = p.vt,"),
    "a tenant's turn costs nothing": ("dispatch_fairly_v1", "SET vt = t.vt + x.n * (1000000 / t.weight), floor", "SET floor"),
    "weights are ignored": ("dispatch_fairly_v1", "1000000 / weight AS step", "1000000 AS step"),
    "a newcomer has credit for its sleep": ("virtual_time_v1", "RETURN coalesce(", "RETURN 0 * coalesce("),
    "a newcomer starts behind all who were served": ("virtual_time_v1", "RETURN coalesce(", "RETURN 3000000 + coalesce("),
    "a partition gets one slot too many": ("dispatch_fairly_v1", "q.concurrency_limit - occupied", "q.concurrency_limit + 1 - occupied"),
    "a partition gets one slot too few": (
        "grant_slots_v1",
        "WHEN occupied >= q.concurrency_limit",
        "WHEN occupied + 1 >= q.concurrency_limit",
    ),
    "a queue gets one slot too many": ("window_room_v1", "q.total_limit - q.occupied", "q.total_limit + 1 - q.occupied"),
    "the window is one too wide": ("window_room_v1", "least(q.dispatch_window -", "least(1 + q.dispatch_window -"),
    "slots are handed over although others compete": ("grant_slots_v1", 'NOT "runlane".has_ready_v1(q.queue_id)', "true"),
    "a lone attempt hands its slot to the youngest": ("hand_over_v1", "ORDER BY score, run_id LIMIT", "ORDER BY score DESC LIMIT"),
    "slots are handed over although a total limit binds": ("grant_slots_v1", "q.total_limit IS NULL", "true"),
    "priority is ignored": ("enqueue_runs_v1", "m.due_at - make_interval(secs => m.priority), m.run_id", "m.due_at, m.run_id"),
    "a paused key competes": ("grant_slots_v1", "WHEN paused_at IS NOT NULL OR tenant_paused_at IS NOT NULL THEN", "WHEN false THEN"),
    "at equal times the batch decides at random": (
        "dispatch_fairly_v1",
        "ORDER BY vt, is_tenant, id LIMIT",
        "ORDER BY vt, is_tenant DESC LIMIT",
    ),
    "the short way has a window one too wide": ("take_room_v1", "window_room_v1(q) - p_count", "window_room_v1(q) - p_count + 1"),
    "the short way passes by those who wait": ("take_room_v1", 'v_room < 0 OR "runlane".has_ready_v1(q.queue_id)', "v_room < 0"),
    "the short way gives a partition one slot too many": (
        "end_limited_v1",
        "q.concurrency_limit - max(occupied)",
        "q.concurrency_limit + 1 - max(occupied)",
    ),
    "the short way gives a partition one slot too few": (
        "end_limited_v1",
        "q.concurrency_limit - max(occupied)",
        "q.concurrency_limit - 1 - max(occupied)",
    ),
    "the short way feeds a paused key": ("end_limited_v1", "CASE WHEN NOT bool_or(x.is_paused) THEN sum(x.demand) END", "sum(x.demand)"),
    "the short way takes the youngest": ("refill_v1", "ORDER BY x.score, x.run_id LIMIT", "ORDER BY x.score DESC, x.run_id LIMIT"),
    "the short way keeps what it has freed": (
        "refill_v1",
        "occupied = x.occupied + x.n, slot_seq",
        "occupied = p.occupied + x.n, slot_seq",
    ),
    "a throttle is charged for one of many starts": ("take_starts_v1", "(q).throttle_step * x.n", "(q).throttle_step"),
    "a throttle plans one start too many": ("next_start_v1", "- (q).throttle_burst", "- (q).throttle_burst - (q).throttle_step"),
}


@contextmanager
def mutated(connection: psycopg.Connection, function: str, found: str, instead: str) -> Iterator[None]:
    row = connection.execute(
        "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'runlane'::regnamespace AND proname = %s", (function,)
    ).fetchone()
    assert row is not None
    assert found in row[0], f"{function} reads differently now: mutate what stands for {found!r}"
    connection.execute(row[0].replace(found, instead).encode())
    try:
        yield
    finally:
        connection.execute(row[0].encode())
