-- name: audit_places
-- Runs that stand nowhere or in two places, and places of runs that were never recorded. Every audit_ statement is one snapshot of
-- a live system and answers at most `limit` pairs of a subject and what is wrong with it. A week on its way out goes table by table.
-- low and high: the run ids to look at; queue: only its faults; since: slots that changed hands since then.
WITH place AS (
    SELECT run_id, 'inbox' AS name FROM {schema}.inbox
    UNION ALL SELECT run_id, 'successor' FROM {schema}.successor
    UNION ALL SELECT run_id, 'waiting' FROM {schema}.waiting
    UNION ALL SELECT run_id, 'timer' FROM {schema}.timer
    UNION ALL SELECT run_id, 'dispatch' FROM {schema}.dispatch
    UNION ALL SELECT run_id, 'lease' FROM {schema}.lease
    UNION ALL SELECT run_id, 'outcome' FROM {schema}.outcome),
placed AS (
    SELECT run_id, count(*) AS places, string_agg(name, ', ' ORDER BY name) AS names FROM place WHERE run_id BETWEEN %(low)s::uuid AND %(high)s::uuid GROUP BY run_id)
SELECT 'run ' || coalesce(r.run_id, p.run_id),
       CASE WHEN r.run_id IS NULL THEN 'stands in ' || p.names || ' but was never recorded'
            WHEN p.run_id IS NULL THEN 'is recorded but stands nowhere: it is lost' ELSE 'stands in ' || p.names END
FROM (SELECT run_id FROM {schema}.run WHERE run_id BETWEEN %(low)s::uuid AND %(high)s::uuid) r FULL JOIN placed p ON p.run_id = r.run_id
WHERE (p.places IS DISTINCT FROM 1 OR r.run_id IS NULL)
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = coalesce(r.run_id, p.run_id) AND n.name = %(queue)s))
  AND NOT EXISTS (SELECT 1 FROM {schema}.retention w WHERE w.swept_to = w.high AND coalesce(r.run_id, p.run_id) >= w.low
                  AND coalesce(r.run_id, p.run_id) < w.high)
LIMIT %(limit)s;

-- name: audit_histories
-- Histories that are not numbered 1, 2, 3, … up to where their run stands.
WITH place AS (
    SELECT run_id, 1 AS seq FROM {schema}.inbox
    UNION ALL SELECT run_id, seq FROM {schema}.successor
    UNION ALL SELECT run_id, seq FROM {schema}.waiting
    UNION ALL SELECT run_id, seq FROM {schema}.timer
    UNION ALL SELECT run_id, seq FROM {schema}.dispatch
    UNION ALL SELECT run_id, seq FROM {schema}.lease
    UNION ALL SELECT run_id, seq FROM {schema}.outcome),
history AS (
    SELECT run_id, count(*) AS events, min(seq) AS first, max(seq) AS last FROM {schema}.event WHERE run_id BETWEEN %(low)s::uuid AND %(high)s::uuid GROUP BY run_id)
SELECT 'run ' || coalesce(h.run_id, p.run_id),
       format('has %%s events, numbered %%s to %%s, and stands at %%s', coalesce(h.events, 0), h.first, h.last, p.seq)
FROM history h FULL JOIN (SELECT run_id, max(seq) AS seq FROM place WHERE run_id BETWEEN %(low)s::uuid AND %(high)s::uuid GROUP BY 1) p ON p.run_id = h.run_id
WHERE (h.first <> 1 OR h.last <> h.events OR p.seq <> h.last
       OR h.run_id IS NULL AND EXISTS (SELECT 1 FROM {schema}.run r WHERE r.run_id = p.run_id))
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = coalesce(h.run_id, p.run_id) AND n.name = %(queue)s))
  AND NOT EXISTS (SELECT 1 FROM {schema}.retention w WHERE w.swept_to = w.high AND coalesce(h.run_id, p.run_id) >= w.low
                  AND coalesce(h.run_id, p.run_id) < w.high)
LIMIT %(limit)s;

-- name: audit_ends
-- Runs whose outcome is not the last thing in their history, or not what it says. A refused result may come later.
SELECT 'run ' || coalesce(e.run_id, o.run_id), format('ended %%s but its history ends with %%s', coalesce(o.status, 'never'), coalesce(e.type, 'nothing'))
FROM (SELECT DISTINCT ON (run_id) run_id, type FROM {schema}.event WHERE type <> 'run.result_refused' AND run_id BETWEEN %(low)s::uuid AND %(high)s::uuid ORDER BY run_id, seq DESC) e
FULL JOIN (SELECT * FROM {schema}.outcome WHERE run_id BETWEEN %(low)s::uuid AND %(high)s::uuid) o ON o.run_id = e.run_id
WHERE CASE WHEN o.run_id IS NULL THEN e.type IN ('run.succeeded', 'run.failed', 'run.cancelled') ELSE e.type IS DISTINCT FROM 'run.' || o.status END
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = coalesce(e.run_id, o.run_id) AND n.name = %(queue)s))
  AND NOT EXISTS (SELECT 1 FROM {schema}.retention w WHERE w.swept_to = w.high AND coalesce(e.run_id, o.run_id) >= w.low
                  AND coalesce(e.run_id, o.run_id) < w.high)
LIMIT %(limit)s;

-- name: audit_owners
-- Claims of a run whose earlier claim had not ended.
SELECT 'run ' || run_id, format('was claimed by %%s while %%s had it', actor, holder)
FROM (SELECT run_id, type, actor, lag(type) OVER history AS before, lag(actor) OVER history AS holder
      FROM {schema}.event
      WHERE type IN ('run.claimed', 'run.succeeded', 'run.failed', 'run.cancelled', 'run.retry_scheduled', 'run.released', 'run.rescheduled')
        AND run_id BETWEEN %(low)s::uuid AND %(high)s::uuid
      WINDOW history AS (PARTITION BY run_id ORDER BY seq)) x
WHERE type = 'run.claimed' AND before = 'run.claimed'
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = x.run_id AND n.name = %(queue)s))
LIMIT %(limit)s;

-- name: audit_transitions
-- Neighbours in a history that the transition table does not know (before, after: those it knows). Not told here: what follows an end, a claim
-- of what is claimed, and neighbours between which an event is missing, as others tell them. A refused result changes nothing.
SELECT 'run ' || x.run_id, format('has %%s at %%s after %%s, which the transition table forbids', x.type, x.seq, coalesce(x.before, 'nothing'))
FROM (SELECT run_id, seq, type, gap, lag(type) OVER history AS before, lag(gap, 1, 0::bigint) OVER history AS gap_before
      FROM (SELECT run_id, seq, type, seq - row_number() OVER (PARTITION BY run_id ORDER BY seq) AS gap
            FROM {schema}.event WHERE run_id BETWEEN %(low)s::uuid AND %(high)s::uuid) e
      WHERE type <> 'run.result_refused' WINDOW history AS (PARTITION BY run_id ORDER BY seq)) x
LEFT JOIN unnest(%(before)s::text[], %(after)s::text[]) k(before, after) ON k.before = x.before AND k.after = x.type
WHERE k.before IS NULL AND (x.before IS NOT NULL OR x.type <> 'run.created') AND x.gap = x.gap_before
  AND coalesce(x.before, '') NOT IN ('run.succeeded', 'run.failed', 'run.cancelled') AND (x.type <> 'run.claimed' OR x.before <> 'run.claimed')
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = x.run_id AND n.name = %(queue)s))
LIMIT %(limit)s;

-- name: audit_late_events
-- Events after the end of a run that are no refusals.
SELECT 'run ' || x.run_id, format('ended with %%s and yet has %%s at %%s', x.before, x.type, x.seq)
FROM (SELECT run_id, seq, type, lag(type) OVER (PARTITION BY run_id ORDER BY seq) AS before
      FROM {schema}.event WHERE type <> 'run.result_refused' AND run_id BETWEEN %(low)s::uuid AND %(high)s::uuid) x
WHERE x.before IN ('run.succeeded', 'run.failed', 'run.cancelled')
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = x.run_id AND n.name = %(queue)s))
LIMIT %(limit)s;

-- name: audit_results
-- Results of another attempt than the one that held the lease, and outcomes and leases that are not those of the event that wrote them. A
-- history keeps no token, but an attempt has one lease: a result without the token shows as one of another attempt.
SELECT 'run ' || x.run_id, format('has %%s of attempt %%s, but attempt %%s held the lease', x.type, x.attempt, x.held)
FROM (SELECT run_id, type, attempt, max(attempt) FILTER (WHERE type = 'run.claimed') OVER (PARTITION BY run_id ORDER BY seq) AS held
      FROM {schema}.event
      WHERE type IN ('run.claimed', 'run.succeeded', 'run.failed', 'run.retry_scheduled', 'run.released', 'run.lease_expired')
        AND run_id BETWEEN %(low)s::uuid AND %(high)s::uuid) x
WHERE x.attempt IS DISTINCT FROM x.held
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = x.run_id AND n.name = %(queue)s))
UNION ALL
SELECT 'run ' || o.run_id, format('has an outcome of attempt %%s, its history ends with %%s of attempt %%s', o.attempt, e.type, e.attempt)
FROM {schema}.outcome o JOIN {schema}.event e ON e.run_id = o.run_id AND e.type = 'run.' || o.status
WHERE o.run_id BETWEEN %(low)s::uuid AND %(high)s::uuid AND e.attempt <> o.attempt
  -- One that was cancelled as it was handed back had not begun its attempt, which does not count.
  AND (o.status <> 'cancelled' OR o.attempt <> e.attempt - 1)
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = o.run_id AND n.name = %(queue)s))
UNION ALL
SELECT 'run ' || l.run_id, format('has a lease of attempt %%s, which was not the last to be claimed', l.attempt)
FROM {schema}.lease l
WHERE l.run_id BETWEEN %(low)s::uuid AND %(high)s::uuid
  AND l.attempt <> (SELECT e.attempt FROM {schema}.event e WHERE e.run_id = l.run_id AND e.type = 'run.claimed' ORDER BY e.seq DESC LIMIT 1)
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = l.run_id AND n.name = %(queue)s))
LIMIT %(limit)s;

-- name: audit_singletons
-- Active runs with a singleton key that neither own it nor succeed the run that does, and keys whose owner has ended.
SELECT 'run ' || r.run_id, format('has the singleton key %%L, which %%s', r.singleton_key,
       CASE WHEN h.run_id IS NOT NULL THEN 'nobody owns before it' ELSE coalesce('run ' || k.run_id || ' owns', 'nobody owns') END)
FROM {schema}.run r LEFT JOIN {schema}.outcome o ON o.run_id = r.run_id LEFT JOIN {schema}.successor h ON h.run_id = r.run_id
LEFT JOIN {schema}.singleton_key k ON k.task = r.task AND k.key = r.singleton_key
WHERE r.singleton_key IS NOT NULL AND o.run_id IS NULL AND r.run_id BETWEEN %(low)s::uuid AND %(high)s::uuid
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = r.run_id AND n.name = %(queue)s))
  AND CASE WHEN h.run_id IS NULL THEN k.run_id IS DISTINCT FROM r.run_id ELSE NOT h.recorded AND k.run_id IS NULL END
UNION ALL
SELECT 'run ' || o.run_id, format('has ended %%s and still owns the singleton key %%L', o.status, k.key)
FROM {schema}.singleton_key k JOIN {schema}.outcome o ON o.run_id = k.run_id
WHERE o.run_id BETWEEN %(low)s::uuid AND %(high)s::uuid
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = o.run_id AND n.name = %(queue)s))
UNION ALL
SELECT 'run ' || h.run_id, format('is one of several successors of the singleton key %%L', h.key)
FROM (SELECT run_id, key, count(*) OVER (PARTITION BY task, key) AS n FROM {schema}.successor WHERE NOT recorded) h
WHERE h.n > 1 AND h.run_id BETWEEN %(low)s::uuid AND %(high)s::uuid
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = h.run_id AND n.name = %(queue)s))
LIMIT %(limit)s;

-- name: audit_attempts
-- Runs that failed more often in a row than they may; a release begins a new row.
SELECT 'run ' || r.run_id, format('failed %%s times in a row, %%s are allowed', count(*), r.max_attempts)
FROM {schema}.run r JOIN {schema}.event e ON e.run_id = r.run_id AND e.type IN ('run.failed', 'run.retry_scheduled')
WHERE r.run_id BETWEEN %(low)s::uuid AND %(high)s::uuid AND e.seq > coalesce((SELECT max(l.seq) FROM {schema}.event l WHERE l.run_id = r.run_id AND l.type = 'run.released'), 0)
  AND (%(queue)s::text IS NULL OR EXISTS (
      SELECT 1 FROM {schema}.run s JOIN {schema}.queue n ON n.queue_id = s.queue_id WHERE s.run_id = r.run_id AND n.name = %(queue)s))
GROUP BY r.run_id, r.max_attempts HAVING count(*) > r.max_attempts
LIMIT %(limit)s;

-- name: audit_partition_limits
-- Slots taken beyond concurrency_limit. A limit counts as in force from ten seconds before its change was written to ten seconds
-- after the next: the clock is read before the lock is held, on both sides.
WITH policy AS (
    SELECT queue_id, (after->>'concurrency_limit')::int AS slots, changed_at - interval '10 seconds' AS since,
           lead(changed_at) OVER (PARTITION BY queue_id ORDER BY changed_at) + interval '10 seconds' AS until
    FROM {schema}.policy_change)
SELECT format('partition %%s of queue %%s', coalesce(p.concurrency_key, p.tenant, p.partition_id::text), q.name),
       format('held %%s slots at slot_seq %%s when run %%s was dispatched, %%s are allowed', e.occupied, e.slot_seq, e.run_id, l.slots)
FROM {schema}.event e JOIN {schema}.partition p ON p.partition_id = e.partition_id JOIN {schema}.queue q ON q.queue_id = p.queue_id
CROSS JOIN LATERAL (
    SELECT max(coalesce(slots, 2147483647)) AS slots FROM policy
    WHERE queue_id = p.queue_id AND since <= e.at AND (until IS NULL OR until >= e.at)) l
WHERE e.slot_seq IS NOT NULL AND e.type = 'run.dispatched' AND e.occupied > l.slots
  AND (%(since)s::timestamptz IS NULL OR e.at >= %(since)s) AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
LIMIT %(limit)s;

-- name: audit_queue_limits
-- The same with total_limit, over the whole queue.
WITH policy AS (
    SELECT queue_id, (after->>'total_limit')::int AS slots, changed_at - interval '10 seconds' AS since,
           lead(changed_at) OVER (PARTITION BY queue_id ORDER BY changed_at) + interval '10 seconds' AS until
    FROM {schema}.policy_change)
SELECT 'queue ' || q.name, format('held %%s slots at queue_slot_seq %%s when run %%s was dispatched, %%s are allowed', e.queue_occupied, e.queue_slot_seq,
                                  e.run_id, l.slots)
FROM {schema}.event e JOIN {schema}.partition p ON p.partition_id = e.partition_id JOIN {schema}.queue q ON q.queue_id = p.queue_id
CROSS JOIN LATERAL (
    SELECT max(coalesce(slots, 2147483647)) AS slots FROM policy
    WHERE queue_id = p.queue_id AND since <= e.at AND (until IS NULL OR until >= e.at)) l
WHERE e.queue_slot_seq IS NOT NULL AND e.type = 'run.dispatched' AND e.queue_occupied > l.slots
  AND (%(since)s::timestamptz IS NULL OR e.at >= %(since)s) AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
LIMIT %(limit)s;

-- name: audit_throttles
-- Starts beyond limit + burst in a half-open period, since ten seconds after the policy of the queue was changed last.
WITH throttle AS (
    SELECT queue_id, name, (policy->'throttle'->>'period')::interval AS period,
           (policy->'throttle'->>'limit')::bigint + (policy->'throttle'->>'burst')::bigint AS starts,
           (SELECT max(changed_at) FROM {schema}.policy_change c WHERE c.queue_id = q.queue_id AND c.before IS NOT NULL) + interval '10 seconds' AS since
    FROM {schema}.queue q WHERE throttle_step IS NOT NULL)
SELECT format('key %%s of queue %%s', coalesce(x.concurrency_key, x.tenant, '–'), x.name),
       format('started %%s times between %%s and %%s, with run %%s; %%s are allowed in %%s', x.starts + 1, x.before, x.at, x.run_id, x.starts,
              x.period)
FROM (SELECT r.run_id, r.tenant, r.concurrency_key, t.*, e.at,
             lag(e.at, least(t.starts, 2147483647)::int) OVER (PARTITION BY r.queue_id, r.tenant, r.concurrency_key ORDER BY e.at) AS before
      FROM throttle t JOIN {schema}.run r ON r.queue_id = t.queue_id JOIN {schema}.event e ON e.run_id = r.run_id AND e.type = 'run.claimed'
      WHERE t.since IS NULL OR e.at >= t.since) x
WHERE x.at - x.before < x.period
  AND (%(since)s::timestamptz IS NULL OR x.before >= %(since)s) AND (%(queue)s::text IS NULL OR x.name = %(queue)s)
LIMIT %(limit)s;

-- name: audit_partition_slots
-- Slot events that are not numbered one by one up to their partition's own number, or whose occupancy does not follow from the last.
-- A change of policy may count anew. What was pruned leaves gaps, up to a known number.
WITH slot AS (
    SELECT e.run_id, e.at, e.partition_id, e.slot_seq, e.occupied, CASE e.type WHEN 'run.dispatched' THEN 1 ELSE -1 END AS change,
           lag(e.slot_seq, 1, coalesce(f.slot_seq, 0)) OVER partition_slots AS seq_before,
           lag(e.occupied, 1, CASE WHEN f.slot_seq IS NULL THEN 0 END) OVER partition_slots AS occupied_before,
           lead(e.slot_seq) OVER partition_slots IS NULL AS is_last
    FROM {schema}.event e LEFT JOIN {schema}.pruned_slots f ON f.partition_id = e.partition_id
    WHERE e.slot_seq > coalesce(f.slot_seq, 0) WINDOW partition_slots AS (PARTITION BY e.partition_id ORDER BY e.slot_seq))
SELECT format('partition %%s of queue %%s', coalesce(p.concurrency_key, p.tenant, p.partition_id::text), q.name),
       format('slot_seq %%s (%%s slots) of run %%s follows %%s (%%s slots); the partition stands at %%s', s.slot_seq, s.occupied, s.run_id,
              s.seq_before, s.occupied_before, p.slot_seq)
FROM slot s JOIN {schema}.partition p ON p.partition_id = s.partition_id JOIN {schema}.queue q ON q.queue_id = p.queue_id
WHERE (s.slot_seq <> s.seq_before + 1 OR s.is_last AND s.slot_seq <> p.slot_seq
   OR s.occupied <> s.occupied_before + s.change
      AND NOT EXISTS (SELECT 1 FROM {schema}.policy_change c WHERE c.queue_id = p.queue_id AND c.before IS NOT NULL))
  AND (%(since)s::timestamptz IS NULL OR s.at >= %(since)s) AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
LIMIT %(limit)s;

-- name: audit_queue_slots
-- The same over the whole queue, where total_limit is set.
WITH pruned AS (
    SELECT p.queue_id, max(f.queue_slot_seq) AS seq FROM {schema}.pruned_slots f JOIN {schema}.partition p ON p.partition_id = f.partition_id
    GROUP BY 1),
slot AS (
    SELECT e.run_id, e.at, p.queue_id, e.queue_slot_seq, e.queue_occupied, CASE e.type WHEN 'run.dispatched' THEN 1 ELSE -1 END AS change,
           lag(e.queue_slot_seq, 1, coalesce(f.seq, 0)) OVER queue_slots AS seq_before,
           lag(e.queue_occupied, 1, CASE WHEN coalesce(f.seq, 0) = 0 THEN 0 END) OVER queue_slots AS occupied_before,
           lead(e.queue_slot_seq) OVER queue_slots IS NULL AS is_last
    FROM {schema}.event e JOIN {schema}.partition p ON p.partition_id = e.partition_id LEFT JOIN pruned f ON f.queue_id = p.queue_id
    WHERE e.queue_slot_seq > coalesce(f.seq, 0) WINDOW queue_slots AS (PARTITION BY p.queue_id ORDER BY e.queue_slot_seq))
SELECT 'queue ' || q.name,
       format('queue_slot_seq %%s (%%s slots) of run %%s follows %%s (%%s slots); the queue stands at %%s', s.queue_slot_seq, s.queue_occupied,
              s.run_id, s.seq_before, s.occupied_before, q.slot_seq)
FROM slot s JOIN {schema}.queue q ON q.queue_id = s.queue_id
WHERE (s.queue_slot_seq <> s.seq_before + 1 OR s.is_last AND s.queue_slot_seq <> q.slot_seq
   OR s.queue_occupied <> s.occupied_before + s.change
      AND NOT EXISTS (SELECT 1 FROM {schema}.policy_change c WHERE c.queue_id = q.queue_id AND c.before IS NOT NULL))
  AND (%(since)s::timestamptz IS NULL OR s.at >= %(since)s) AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
LIMIT %(limit)s;

-- name: audit_partition_counts
-- Partitions whose counts are not what they count.
SELECT format('partition %%s of queue %%s', coalesce(p.concurrency_key, p.tenant, p.partition_id::text), q.name),
       format('counts %%s waiting, %%s occupied and %%s reserved, there are %%s, %%s and %%s', p.waiting, p.occupied, p.reserved,
              coalesce(w.n, 0), coalesce(s.n, 0), coalesce(s.dispatched, 0))
FROM {schema}.partition p JOIN {schema}.queue q ON q.queue_id = p.queue_id
LEFT JOIN (SELECT partition_id, count(*) AS n FROM {schema}.waiting GROUP BY 1) w ON w.partition_id = p.partition_id
LEFT JOIN (SELECT partition_id, count(*) AS n, sum(reserved) AS dispatched
           FROM (SELECT partition_id, 1 AS reserved FROM {schema}.dispatch UNION ALL SELECT partition_id, 0 FROM {schema}.lease) x GROUP BY 1) s
    ON s.partition_id = p.partition_id
WHERE (p.waiting <> coalesce(w.n, 0)
   OR (q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL) AND p.occupied <> coalesce(s.n, 0)
   OR q.throttle_step IS NOT NULL AND p.reserved <> coalesce(s.dispatched, 0))
  AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
LIMIT %(limit)s;

-- name: audit_queue_counts
-- Queues whose counters are not what they count.
SELECT 'queue ' || name,
       format('counts %%s waiting, %%s scheduled, %%s dispatched, %%s running, %%s occupied; there are %%s, %%s, %%s, %%s, %%s',
              c_waiting, c_scheduled, c_dispatched, c_running, c_occupied, waiting, scheduled, dispatched, running, dispatched + running)
FROM (SELECT q.name, sum(c.waiting) AS c_waiting, sum(c.dispatched) AS c_dispatched, sum(c.running) AS c_running,
             sum(c.scheduled) + coalesce((SELECT sum(d.scheduled) FROM {schema}.queue_counter_delta d WHERE d.queue_id = q.queue_id), 0) AS c_scheduled,
             CASE WHEN q.total_limit IS NOT NULL THEN q.occupied END AS c_occupied,
             (SELECT count(*) FROM {schema}.waiting x WHERE x.queue_id = q.queue_id) AS waiting,
             (SELECT count(*) FROM {schema}.timer x WHERE x.queue_id = q.queue_id) AS scheduled,
             (SELECT count(*) FROM {schema}.dispatch x WHERE x.queue_id = q.queue_id) AS dispatched,
             (SELECT count(*) FROM {schema}.lease x WHERE x.queue_id = q.queue_id) AS running
      FROM {schema}.queue q JOIN {schema}.queue_counter c ON c.queue_id = q.queue_id GROUP BY q.queue_id) x
WHERE (c_waiting <> waiting OR c_scheduled <> scheduled OR c_dispatched <> dispatched OR c_running <> running OR c_occupied <> dispatched + running)
  AND (%(queue)s::text IS NULL OR name = %(queue)s)
LIMIT %(limit)s;

-- name: audit_wakes
-- Waiting runs that no dispatch will find: their partition is not in the order where it belongs, or sleeps longer than its throttle asks, or
-- its scans begin behind them. The time in which a sleeping one wakes is maintenance's. Timers of any age are found by each pass.
SELECT format('partition %%s of queue %%s', coalesce(x.concurrency_key, x.tenant, x.partition_id::text), x.name),
       format('is in state %%s, which should be %%s, with %%s waiting from run %%s on: nothing will wake them', x.state, x.right_state, x.n, x.first)
FROM (SELECT p.*, q.name, w.n, w.first, w.score,
             CASE WHEN w.n IS NULL THEN 'e' WHEN p.paused_at IS NOT NULL OR p.tenant_paused_at IS NOT NULL THEN 'p'
                  WHEN p.occupied >= q.concurrency_limit THEN 'b'
                  -- Asleep or awake by the time of the last look.
                  WHEN q.throttle_step IS NOT NULL AND p.state = 't' THEN 't' ELSE 'r' END::"char" AS right_state
      FROM {schema}.partition p JOIN {schema}.queue q ON q.queue_id = p.queue_id
      LEFT JOIN (SELECT partition_id, count(*) AS n, min(score) AS score, min(run_id::text) AS first FROM {schema}.waiting GROUP BY 1) w
          ON w.partition_id = p.partition_id
      WHERE %(queue)s::text IS NULL OR q.name = %(queue)s) x
WHERE x.state <> x.right_state
UNION ALL
SELECT format('partition %%s of queue %%s', coalesce(p.concurrency_key, p.tenant, p.partition_id::text), q.name),
       format('scans from %%s on, after its waiting run %%s', p.head, w.run_id)
FROM {schema}.waiting w JOIN {schema}.partition p ON p.partition_id = w.partition_id JOIN {schema}.queue q ON q.queue_id = p.queue_id
WHERE w.score < p.head AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
UNION ALL
SELECT format('partition %%s of queue %%s', coalesce(p.concurrency_key, p.tenant, p.partition_id::text), q.name),
       format('is ready and its tenant %%s is not', t.name)
FROM {schema}.partition p JOIN {schema}.tenant t ON t.tenant_id = p.tenant_id JOIN {schema}.queue q ON q.queue_id = p.queue_id
WHERE p.state = 'r' AND NOT t.ready AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
UNION ALL
SELECT format('partition %%s of queue %%s', coalesce(p.concurrency_key, p.tenant, p.partition_id::text), q.name),
       format('sleeps until %%s, its throttle asks until %%s', p.ready_at, n.next)
FROM {schema}.partition p JOIN {schema}.queue q ON q.queue_id = p.queue_id
CROSS JOIN LATERAL (SELECT {schema}.next_start_v1(q, p.throttle_clock, p.reserved, 0, clock_timestamp()) AS next) n
WHERE p.state = 't' AND (p.ready_at IS NULL OR p.ready_at > n.next) AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
UNION ALL
SELECT 'run ' || x.run_id, format('stands in %%s of a queue or partition that is not there', x.place)
FROM (SELECT run_id, queue_id, partition_id, 'waiting' AS place FROM {schema}.waiting
      UNION ALL SELECT run_id, queue_id, NULL, 'timer' FROM {schema}.timer
      UNION ALL SELECT run_id, queue_id, NULL, 'inbox' FROM {schema}.inbox) x
WHERE %(queue)s::text IS NULL AND (NOT EXISTS (SELECT 1 FROM {schema}.queue q WHERE q.queue_id = x.queue_id)
   OR x.partition_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {schema}.partition p WHERE p.partition_id = x.partition_id))
LIMIT %(limit)s;

-- name: audit_capacity
-- Ready partitions beside free capacity. A claim fills the window again once half of it is free: until then what is dispatched has claims to come.
SELECT format('partition %%s of queue %%s', coalesce(p.concurrency_key, p.tenant, p.partition_id::text), q.name),
       format('is ready with run %%s, and nothing holds it: %%s of %%s are dispatched, %%s of %%s slots occupied',
              (SELECT w.run_id FROM {schema}.waiting w WHERE w.partition_id = p.partition_id ORDER BY w.score LIMIT 1),
              c.dispatched, q.dispatch_window, q.occupied, coalesce(q.total_limit::text, 'any number of'))
FROM {schema}.queue q JOIN {schema}.partition p ON p.queue_id = q.queue_id
JOIN (SELECT queue_id, sum(dispatched) AS dispatched FROM {schema}.queue_counter GROUP BY 1) c ON c.queue_id = q.queue_id
WHERE p.state = 'r' AND q.paused_at IS NULL AND (q.total_limit IS NULL OR q.occupied < q.total_limit) AND c.dispatched < q.dispatch_window
  AND q.dispatch_window - c.dispatched >= least(q.dispatch_window / 2, coalesce(q.total_limit, q.dispatch_window))
  AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
LIMIT %(limit)s;

-- name: audit_partitions
-- Slots and waiting runs that are counted in another partition than that of their keys, or in none where there is a limit.
SELECT 'run ' || x.run_id, format('is in partition %%s of queue %%s, which is not that of its keys', coalesce(p.partition_id::text, '–'), q.name)
FROM (SELECT run_id, queue_id, partition_id FROM {schema}.dispatch
      UNION ALL SELECT run_id, queue_id, partition_id FROM {schema}.lease
      UNION ALL SELECT run_id, queue_id, partition_id FROM {schema}.waiting) x
JOIN {schema}.queue q ON q.queue_id = x.queue_id JOIN {schema}.run r ON r.run_id = x.run_id
LEFT JOIN {schema}.partition p ON p.partition_id = x.partition_id
WHERE x.run_id BETWEEN %(low)s::uuid AND %(high)s::uuid AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
  AND CASE WHEN p.partition_id IS NULL THEN q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL
           ELSE p.queue_id <> x.queue_id OR p.queue_id <> r.queue_id OR p.tenant IS DISTINCT FROM r.tenant
                OR p.concurrency_key IS DISTINCT FROM r.concurrency_key END
LIMIT %(limit)s;

-- name: audit_keys
-- Keys owned by runs that are gone. A week on its way out goes table by table.
SELECT 'run ' || k.run_id, format('is gone and still owns the %%s key %%L of task %%s', k.kind, k.key, k.task)
FROM (SELECT task, key, run_id, 'idempotency' AS kind FROM {schema}.idempotency_key
      UNION ALL SELECT task, key, run_id, 'singleton' FROM {schema}.singleton_key) k
WHERE k.run_id BETWEEN %(low)s::uuid AND %(high)s::uuid AND %(queue)s::text IS NULL AND NOT EXISTS (SELECT 1 FROM {schema}.run r WHERE r.run_id = k.run_id)
  AND NOT EXISTS (SELECT 1 FROM {schema}.retention w WHERE w.swept_to = w.high AND k.run_id >= w.low AND k.run_id < w.high)
LIMIT %(limit)s;

-- name: audit_reservations
-- Reservations of throttled queues that have no time.
SELECT 'run ' || d.run_id, 'is dispatched on the throttled queue ' || q.name || ' and has no start_at'
FROM {schema}.dispatch d JOIN {schema}.queue q ON q.queue_id = d.queue_id
WHERE q.throttle_step IS NOT NULL AND d.start_at IS NULL AND d.run_id BETWEEN %(low)s::uuid AND %(high)s::uuid AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
LIMIT %(limit)s;

-- name: count_runs
-- Per queue: recorded runs, those that ended by how, those under a lease.
SELECT q.name, count(r.run_id), count(*) FILTER (WHERE o.status = 'succeeded'), count(*) FILTER (WHERE o.status = 'failed'),
       count(*) FILTER (WHERE o.status = 'cancelled'), count(l.run_id)
FROM {schema}.queue q LEFT JOIN {schema}.run r ON r.queue_id = q.queue_id
LEFT JOIN {schema}.outcome o ON o.run_id = r.run_id LEFT JOIN {schema}.lease l ON l.run_id = r.run_id
GROUP BY q.queue_id ORDER BY q.queue_id;

-- name: count_history
-- Per queue, from committed events: runs that were retried and recovered, releases, and the most slots ever held at once.
SELECT q.name, count(DISTINCT e.run_id) FILTER (WHERE e.type = 'run.retry_scheduled'),
       count(DISTINCT e.run_id) FILTER (WHERE e.type = 'run.lease_expired'), count(*) FILTER (WHERE e.type = 'run.released'),
       max(e.occupied), max(e.queue_occupied), q.concurrency_limit, q.total_limit
FROM {schema}.queue q LEFT JOIN {schema}.run r ON r.queue_id = q.queue_id LEFT JOIN {schema}.event e ON e.run_id = r.run_id
GROUP BY q.queue_id ORDER BY q.queue_id;

-- name: measure_waits
-- Per queue, for the runs of some keys and for all others: how long they waited from being due to their first attempt.
SELECT name, is_named, count(*), make_interval(secs => percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds)),
       make_interval(secs => percentile_cont(0.99) WITHIN GROUP (ORDER BY seconds))
FROM (SELECT q.name, coalesce(r.concurrency_key = ANY (%(keys)s::text[]), false) AS is_named,
             extract(epoch FROM min(e.at) - r.run_at)::float8 AS seconds
      FROM {schema}.run r JOIN {schema}.queue q ON q.queue_id = r.queue_id
      JOIN {schema}.event e ON e.run_id = r.run_id AND e.type = 'run.claimed'
      GROUP BY q.name, r.run_id, r.concurrency_key, r.run_at) x
GROUP BY 1, 2 ORDER BY 1, 2;

-- name: list_holders
-- Who has held a lease for how long, longest first.
SELECT e.actor, l.run_id::text, clock_timestamp() - max(e.at)
FROM {schema}.lease l JOIN {schema}.event e ON e.run_id = l.run_id AND e.type = 'run.claimed' AND e.attempt = l.attempt
GROUP BY 1, 2 ORDER BY 3 DESC;
