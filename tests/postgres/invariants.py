"""What must hold whenever no transaction is open. Each query names what breaks it; none may return a row."""

from __future__ import annotations

import psycopg

_POSITIONS = """
WITH position AS (
    SELECT run_id, 'inbox' AS place, NULL::int AS seq FROM runlane.inbox
    UNION ALL SELECT run_id, 'successor', seq FROM runlane.successor
    UNION ALL SELECT run_id, 'waiting', seq FROM runlane.waiting
    UNION ALL SELECT run_id, 'timer', seq FROM runlane.timer
    UNION ALL SELECT run_id, 'dispatch', seq FROM runlane.dispatch
    UNION ALL SELECT run_id, 'lease', seq FROM runlane.lease
    UNION ALL SELECT run_id, 'outcome', seq FROM runlane.outcome)
"""

INVARIANTS = {
    "a run stands in exactly one place": _POSITIONS
    + """
SELECT r.run_id, array_agg(p.place) FROM runlane.run r LEFT JOIN position p USING (run_id)
GROUP BY 1 HAVING count(p.place) <> 1
""",
    "what stands somewhere is a run": _POSITIONS
    + """
SELECT p.run_id, p.place FROM position p LEFT JOIN runlane.run r USING (run_id) WHERE r.run_id IS NULL
""",
    "events are numbered without gaps, up to the run's own number": _POSITIONS
    + """
SELECT e.run_id, count(*), min(e.seq), max(e.seq), min(p.seq) FROM runlane.event e LEFT JOIN position p USING (run_id)
GROUP BY 1 HAVING min(e.seq) <> 1 OR max(e.seq) <> count(*) OR max(e.seq) <> min(coalesce(p.seq, 1))
""",
    "an active run owns its singleton key, or succeeds the one that does": """
SELECT r.run_id, r.singleton_key, k.run_id AS owner, h.run_id AS successor, h.recorded FROM runlane.run r
LEFT JOIN runlane.outcome o USING (run_id) LEFT JOIN runlane.successor h USING (run_id)
LEFT JOIN runlane.singleton_key k ON k.task = r.task AND k.key = r.singleton_key
WHERE r.singleton_key IS NOT NULL AND o.run_id IS NULL
  AND CASE WHEN h.run_id IS NULL THEN k.run_id IS DISTINCT FROM r.run_id ELSE NOT h.recorded AND k.run_id IS NULL END
""",
    "a singleton key belongs to an active run": """
SELECT k.* FROM runlane.singleton_key k JOIN runlane.outcome o USING (run_id)
""",
    "a key has one successor, but for those that were only recorded": """
SELECT task, key FROM runlane.successor WHERE NOT recorded GROUP BY 1, 2 HAVING count(*) > 1
""",
    "counters equal what they count": """
SELECT * FROM (
    SELECT q.name,
           c.waiting, (SELECT count(*) FROM runlane.waiting x WHERE x.queue_id = q.queue_id) AS in_waiting,
           c.scheduled, (SELECT count(*) FROM runlane.timer x WHERE x.queue_id = q.queue_id) AS in_timer,
           c.dispatched, (SELECT count(*) FROM runlane.dispatch x WHERE x.queue_id = q.queue_id) AS in_dispatch,
           c.running, (SELECT count(*) FROM runlane.lease x WHERE x.queue_id = q.queue_id) AS in_lease
    FROM runlane.queue q CROSS JOIN LATERAL (
        SELECT sum(waiting) AS waiting, sum(dispatched) AS dispatched, sum(running) AS running,
               sum(scheduled)
               + coalesce((SELECT sum(d.scheduled) FROM runlane.queue_counter_delta d WHERE d.queue_id = q.queue_id), 0) AS scheduled
        FROM runlane.queue_counter WHERE queue_id = q.queue_id) c) x
WHERE waiting <> in_waiting OR scheduled <> in_timer OR dispatched <> in_dispatch OR running <> in_lease
""",
    "a partition's counts equal what they count": """
SELECT * FROM (
    SELECT p.partition_id, p.tenant, p.concurrency_key, p.waiting, p.occupied, p.head,
           q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL AS bounded,
           (SELECT count(*) FROM runlane.waiting w WHERE w.partition_id = p.partition_id) AS in_waiting,
           (SELECT min(score) FROM runlane.waiting w WHERE w.partition_id = p.partition_id) AS least_score,
           (SELECT count(*) FROM runlane.dispatch d WHERE d.partition_id = p.partition_id)
           + (SELECT count(*) FROM runlane.lease l WHERE l.partition_id = p.partition_id) AS slots
    FROM runlane.partition p JOIN runlane.queue q USING (queue_id)) x
WHERE waiting <> in_waiting OR head > least_score OR bounded AND occupied <> slots
""",
    "a bounded queue knows the partition of every slot": """
SELECT x.run_id, q.name FROM (SELECT run_id, queue_id, partition_id FROM runlane.dispatch
                              UNION ALL SELECT run_id, queue_id, partition_id FROM runlane.lease) x
JOIN runlane.queue q USING (queue_id)
WHERE (q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL) AND x.partition_id IS NULL
""",
    "a slot's partition is its run's": """
SELECT x.run_id, p.partition_id FROM (SELECT run_id, queue_id, partition_id FROM runlane.dispatch
                                      UNION ALL SELECT run_id, queue_id, partition_id FROM runlane.lease
                                      UNION ALL SELECT run_id, queue_id, partition_id FROM runlane.waiting) x
JOIN runlane.partition p USING (partition_id) JOIN runlane.run r USING (run_id)
WHERE p.queue_id <> x.queue_id OR p.queue_id <> r.queue_id OR p.tenant IS DISTINCT FROM r.tenant
   OR p.concurrency_key IS DISTINCT FROM r.concurrency_key
""",
    "a queue's occupied slots are counted": """
SELECT * FROM (
    SELECT q.name, q.occupied, (SELECT count(*) FROM runlane.dispatch d WHERE d.queue_id = q.queue_id)
           + (SELECT count(*) FROM runlane.lease l WHERE l.queue_id = q.queue_id) AS slots
    FROM runlane.queue q WHERE q.total_limit IS NOT NULL) x
WHERE occupied <> slots
""",
    "a partition's state follows from its counts": """
SELECT * FROM (
    SELECT p.partition_id, p.tenant, p.concurrency_key, p.state, p.waiting, p.occupied,
           CASE WHEN p.waiting = 0 THEN 'e' WHEN p.paused_at IS NOT NULL OR p.tenant_paused_at IS NOT NULL THEN 'p'
                WHEN p.occupied >= q.concurrency_limit THEN 'b'
                -- Asleep or awake by the time of the last look.
                WHEN q.throttle_step IS NOT NULL AND p.state = 't' THEN 't' ELSE 'r' END::"char" AS right_state
    FROM runlane.partition p JOIN runlane.queue q USING (queue_id)) x
WHERE state <> right_state
""",
    "a throttled partition counts its reservations, and each has its time": """
SELECT * FROM (
    SELECT p.partition_id, p.reserved, count(d.run_id) AS dispatched,
           count(*) FILTER (WHERE d.run_id IS NOT NULL AND d.start_at IS NULL) AS untimed
    FROM runlane.partition p JOIN runlane.queue q USING (queue_id) LEFT JOIN runlane.dispatch d USING (partition_id)
    WHERE q.throttle_step IS NOT NULL GROUP BY 1) x
WHERE reserved <> dispatched OR untimed > 0
""",
    "a throttled partition sleeps no longer than its throttle asks": """
SELECT p.partition_id, p.ready_at, n.next FROM runlane.partition p JOIN runlane.queue q USING (queue_id)
CROSS JOIN LATERAL (SELECT runlane.next_start_v1(q, p.throttle_clock, p.reserved, 0, clock_timestamp()) AS next) n
WHERE p.state = 't' AND (p.ready_at IS NULL OR p.ready_at > n.next)
""",
    "no period saw more starts than its throttle permits": """
SELECT * FROM (
    SELECT e.run_id, e.at, x.permitted, x.period,
           lag(e.at, x.permitted) OVER (PARTITION BY r.queue_id, r.tenant, r.concurrency_key ORDER BY e.at) AS before
    FROM runlane.event e JOIN runlane.run r USING (run_id) JOIN runlane.queue q USING (queue_id)
    CROSS JOIN LATERAL (SELECT (q.policy->'throttle'->>'period')::interval AS period,
        (q.policy->'throttle'->>'limit')::int + (q.policy->'throttle'->>'burst')::int AS permitted) x
    WHERE e.type = 'run.claimed' AND q.throttle_step IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM runlane.policy_change c WHERE c.queue_id = q.queue_id AND c.before IS NOT NULL)) x
WHERE at - before < period
""",
    "a tenant with a ready partition is ready": """
SELECT p.partition_id, t.name FROM runlane.partition p JOIN runlane.tenant t USING (tenant_id) WHERE p.state = 'r' AND NOT t.ready
""",
    "no partition sleeps beside free capacity": """
SELECT q.name, p.partition_id, c.dispatched, q.occupied FROM runlane.queue q JOIN runlane.partition p USING (queue_id)
CROSS JOIN LATERAL (SELECT sum(dispatched) AS dispatched FROM runlane.queue_counter c WHERE c.queue_id = q.queue_id) c
WHERE p.state = 'r' AND q.paused_at IS NULL AND (q.total_limit IS NULL OR q.occupied < q.total_limit)
  -- A claim fills the window again once half of it is free: until then what is dispatched has claims to come.
  AND c.dispatched < q.dispatch_window
  AND q.dispatch_window - c.dispatched >= least(q.dispatch_window / 2, coalesce(q.total_limit, q.dispatch_window))
""",
    "slots of a partition are numbered without gaps, beyond what was pruned": """
SELECT * FROM (
    SELECT e.partition_id, e.slot_seq, f.slot_seq AS pruned, row_number() OVER (PARTITION BY e.partition_id ORDER BY e.slot_seq) AS place
    FROM runlane.event e LEFT JOIN runlane.pruned_slots f USING (partition_id) WHERE e.slot_seq > coalesce(f.slot_seq, 0)) x
WHERE slot_seq <> coalesce(pruned, 0) + place
""",
    "each slot event changes the occupancy by one": """
SELECT * FROM (
    SELECT e.run_id, e.partition_id, e.type, e.slot_seq, e.occupied,
           e.occupied - lag(e.occupied, 1, CASE WHEN f.slot_seq IS NULL THEN 0 END) OVER slots AS change
    FROM runlane.event e LEFT JOIN runlane.pruned_slots f USING (partition_id) WHERE e.slot_seq > coalesce(f.slot_seq, 0)
    WINDOW slots AS (PARTITION BY e.partition_id ORDER BY e.slot_seq)) x
WHERE change <> CASE type WHEN 'run.dispatched' THEN 1 ELSE -1 END
  AND NOT EXISTS (SELECT 1 FROM runlane.policy_change WHERE before IS NOT NULL)
""",
    "no key is owned by a run that is gone": """
SELECT k.task, k.key, k.run_id
FROM (SELECT task, key, run_id FROM runlane.idempotency_key UNION ALL SELECT task, key, run_id FROM runlane.singleton_key) k
LEFT JOIN runlane.run r USING (run_id) WHERE r.run_id IS NULL
""",
}


def check_invariants(connection: psycopg.Connection) -> None:
    broken = {name: rows for name, query in INVARIANTS.items() if (rows := connection.execute(query.encode()).fetchmany(5))}
    assert not broken, "\n".join(f"broken: {name}: {rows}" for name, rows in broken.items())


def highest_occupancy(connection: psycopg.Connection, queue: str) -> int:
    """The most slots that any partition of the queue ever held, from committed events."""
    row = connection.execute(
        "SELECT coalesce(max(e.occupied), 0) FROM runlane.event e JOIN runlane.run r USING (run_id) JOIN runlane.queue q USING (queue_id)"
        " WHERE q.name = %s",
        (queue,),
    ).fetchone()
    return int(row[0]) if row else 0


def queue_slots(connection: psycopg.Connection, queue: str) -> list[tuple[int, int]]:
    """(queue_slot_seq, queue_occupied) of every slot event of the queue, in order."""
    return connection.execute(
        "SELECT e.queue_slot_seq, e.queue_occupied FROM runlane.event e JOIN runlane.run r USING (run_id)"
        " JOIN runlane.queue q USING (queue_id)"
        " WHERE q.name = %s AND e.queue_slot_seq IS NOT NULL ORDER BY 1",
        (queue,),
    ).fetchall()
