-- name: audit_places
-- Runs that stand nowhere or in two places, and places of runs that were never recorded. Every audit_ statement is one snapshot of
-- a live system and answers at most `limit` pairs of a subject and what is wrong with it. A week on its way out goes table by table.
WITH place AS (
    SELECT run_id, 'inbox' AS name FROM {schema}.inbox
    UNION ALL SELECT run_id, 'successor' FROM {schema}.successor
    UNION ALL SELECT run_id, 'waiting' FROM {schema}.waiting
    UNION ALL SELECT run_id, 'timer' FROM {schema}.timer
    UNION ALL SELECT run_id, 'dispatch' FROM {schema}.dispatch
    UNION ALL SELECT run_id, 'lease' FROM {schema}.lease
    UNION ALL SELECT run_id, 'outcome' FROM {schema}.outcome),
placed AS (
    SELECT run_id, count(*) AS places, string_agg(name, ', ' ORDER BY name) AS names FROM place GROUP BY run_id)
SELECT 'run ' || coalesce(r.run_id, p.run_id),
       CASE WHEN r.run_id IS NULL THEN 'stands in ' || p.names || ' but was never recorded'
            WHEN p.run_id IS NULL THEN 'is recorded but stands nowhere: it is lost' ELSE 'stands in ' || p.names END
FROM {schema}.run r FULL JOIN placed p ON p.run_id = r.run_id
WHERE (p.places IS DISTINCT FROM 1 OR r.run_id IS NULL)
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
    SELECT run_id, count(*) AS events, min(seq) AS first, max(seq) AS last FROM {schema}.event GROUP BY run_id)
SELECT 'run ' || coalesce(h.run_id, p.run_id),
       format('has %%s events, numbered %%s to %%s, and stands at %%s', coalesce(h.events, 0), h.first, h.last, p.seq)
FROM history h FULL JOIN place p ON p.run_id = h.run_id
WHERE (h.first IS DISTINCT FROM 1 OR h.last IS DISTINCT FROM h.events OR p.seq IS DISTINCT FROM h.last)
  AND NOT EXISTS (SELECT 1 FROM {schema}.retention w WHERE w.swept_to = w.high AND coalesce(h.run_id, p.run_id) >= w.low
                  AND coalesce(h.run_id, p.run_id) < w.high)
LIMIT %(limit)s;

-- name: audit_ends
-- Runs whose outcome is not the last thing in their history, or not what it says. A refused result may come later.
SELECT 'run ' || coalesce(e.run_id, o.run_id), format('ended %%s but its history ends with %%s', coalesce(o.status, 'never'), coalesce(e.type, 'nothing'))
FROM (SELECT DISTINCT ON (run_id) run_id, type FROM {schema}.event WHERE type <> 'run.result_refused' ORDER BY run_id, seq DESC) e
FULL JOIN {schema}.outcome o ON o.run_id = e.run_id
WHERE CASE WHEN o.run_id IS NULL THEN e.type IN ('run.succeeded', 'run.failed', 'run.cancelled') ELSE e.type IS DISTINCT FROM 'run.' || o.status END
  AND NOT EXISTS (SELECT 1 FROM {schema}.retention w WHERE w.swept_to = w.high AND coalesce(e.run_id, o.run_id) >= w.low
                  AND coalesce(e.run_id, o.run_id) < w.high)
LIMIT %(limit)s;

-- name: audit_owners
-- Claims of a run whose earlier claim had not ended.
SELECT 'run ' || run_id, format('was claimed by %%s while %%s had it', actor, holder)
FROM (SELECT run_id, type, actor, lag(type) OVER history AS before, lag(actor) OVER history AS holder
      FROM {schema}.event
      WHERE type IN ('run.claimed', 'run.succeeded', 'run.failed', 'run.cancelled', 'run.retry_scheduled', 'run.released', 'run.rescheduled')
      WINDOW history AS (PARTITION BY run_id ORDER BY seq)) x
WHERE type = 'run.claimed' AND before = 'run.claimed'
LIMIT %(limit)s;

-- name: audit_singletons
-- Active runs with a singleton key that neither own it nor succeed the run that does, and keys whose owner has ended.
SELECT 'run ' || r.run_id, format('has the singleton key %%L, which %%s', r.singleton_key,
       CASE WHEN h.run_id IS NOT NULL THEN 'nobody owns before it' ELSE coalesce('run ' || k.run_id || ' owns', 'nobody owns') END)
FROM {schema}.run r LEFT JOIN {schema}.outcome o ON o.run_id = r.run_id LEFT JOIN {schema}.successor h ON h.run_id = r.run_id
LEFT JOIN {schema}.singleton_key k ON k.task = r.task AND k.key = r.singleton_key
WHERE r.singleton_key IS NOT NULL AND o.run_id IS NULL
  AND CASE WHEN h.run_id IS NULL THEN k.run_id IS DISTINCT FROM r.run_id ELSE NOT h.recorded AND k.run_id IS NULL END
UNION ALL
SELECT 'run ' || o.run_id, format('has ended %%s and still owns the singleton key %%L', o.status, k.key)
FROM {schema}.singleton_key k JOIN {schema}.outcome o ON o.run_id = k.run_id
LIMIT %(limit)s;

-- name: audit_attempts
-- Runs that failed more often in a row than they may; a release begins a new row.
SELECT 'run ' || r.run_id, format('failed %%s times in a row, %%s are allowed', count(*), r.max_attempts)
FROM {schema}.run r JOIN {schema}.event e ON e.run_id = r.run_id AND e.type IN ('run.failed', 'run.retry_scheduled')
WHERE e.seq > coalesce((SELECT max(l.seq) FROM {schema}.event l WHERE l.run_id = r.run_id AND l.type = 'run.released'), 0)
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
       format('held %%s slots at slot_seq %%s, %%s are allowed', e.occupied, e.slot_seq, l.slots)
FROM {schema}.event e JOIN {schema}.partition p ON p.partition_id = e.partition_id JOIN {schema}.queue q ON q.queue_id = p.queue_id
CROSS JOIN LATERAL (
    SELECT max(coalesce(slots, 2147483647)) AS slots FROM policy
    WHERE queue_id = p.queue_id AND since <= e.at AND (until IS NULL OR until >= e.at)) l
WHERE e.slot_seq IS NOT NULL AND e.type = 'run.dispatched' AND e.occupied > l.slots
LIMIT %(limit)s;

-- name: audit_queue_limits
-- The same with total_limit, over the whole queue.
WITH policy AS (
    SELECT queue_id, (after->>'total_limit')::int AS slots, changed_at - interval '10 seconds' AS since,
           lead(changed_at) OVER (PARTITION BY queue_id ORDER BY changed_at) + interval '10 seconds' AS until
    FROM {schema}.policy_change)
SELECT 'queue ' || q.name, format('held %%s slots at queue_slot_seq %%s, %%s are allowed', e.queue_occupied, e.queue_slot_seq, l.slots)
FROM {schema}.event e JOIN {schema}.partition p ON p.partition_id = e.partition_id JOIN {schema}.queue q ON q.queue_id = p.queue_id
CROSS JOIN LATERAL (
    SELECT max(coalesce(slots, 2147483647)) AS slots FROM policy
    WHERE queue_id = p.queue_id AND since <= e.at AND (until IS NULL OR until >= e.at)) l
WHERE e.queue_slot_seq IS NOT NULL AND e.type = 'run.dispatched' AND e.queue_occupied > l.slots
LIMIT %(limit)s;

-- name: audit_throttles
-- Starts beyond limit + burst in a half-open period, since ten seconds after the policy of the queue was changed last.
WITH throttle AS (
    SELECT queue_id, name, (policy->'throttle'->>'period')::interval AS period,
           (policy->'throttle'->>'limit')::bigint + (policy->'throttle'->>'burst')::bigint AS starts,
           (SELECT max(changed_at) FROM {schema}.policy_change c WHERE c.queue_id = q.queue_id AND c.before IS NOT NULL) + interval '10 seconds' AS since
    FROM {schema}.queue q WHERE throttle_step IS NOT NULL)
SELECT format('key %%s of queue %%s', coalesce(x.concurrency_key, x.tenant, '–'), x.name),
       format('started %%s times between %%s and %%s, %%s are allowed in %%s', x.starts + 1, x.before, x.at, x.starts, x.period)
FROM (SELECT r.tenant, r.concurrency_key, t.*, e.at,
             lag(e.at, least(t.starts, 2147483647)::int) OVER (PARTITION BY r.queue_id, r.tenant, r.concurrency_key ORDER BY e.at) AS before
      FROM throttle t JOIN {schema}.run r ON r.queue_id = t.queue_id JOIN {schema}.event e ON e.run_id = r.run_id AND e.type = 'run.claimed'
      WHERE t.since IS NULL OR e.at >= t.since) x
WHERE x.at - x.before < x.period
LIMIT %(limit)s;

-- name: audit_partition_slots
-- Slot events that are not numbered one by one up to their partition's own number, or whose occupancy does not follow from the last.
-- A change of policy may count anew. What was pruned leaves gaps, up to a known number.
WITH slot AS (
    SELECT e.partition_id, e.slot_seq, e.occupied, CASE e.type WHEN 'run.dispatched' THEN 1 ELSE -1 END AS change,
           lag(e.slot_seq, 1, coalesce(f.slot_seq, 0)) OVER partition_slots AS seq_before,
           lag(e.occupied, 1, CASE WHEN f.slot_seq IS NULL THEN 0 END) OVER partition_slots AS occupied_before,
           lead(e.slot_seq) OVER partition_slots IS NULL AS is_last
    FROM {schema}.event e LEFT JOIN {schema}.pruned_slots f ON f.partition_id = e.partition_id
    WHERE e.slot_seq > coalesce(f.slot_seq, 0) WINDOW partition_slots AS (PARTITION BY e.partition_id ORDER BY e.slot_seq))
SELECT format('partition %%s of queue %%s', coalesce(p.concurrency_key, p.tenant, p.partition_id::text), q.name),
       format('slot_seq %%s (%%s slots) follows %%s (%%s slots); the partition stands at %%s', s.slot_seq, s.occupied, s.seq_before,
              s.occupied_before, p.slot_seq)
FROM slot s JOIN {schema}.partition p ON p.partition_id = s.partition_id JOIN {schema}.queue q ON q.queue_id = p.queue_id
WHERE s.slot_seq <> s.seq_before + 1 OR s.is_last AND s.slot_seq <> p.slot_seq
   OR s.occupied <> s.occupied_before + s.change
      AND NOT EXISTS (SELECT 1 FROM {schema}.policy_change c WHERE c.queue_id = p.queue_id AND c.before IS NOT NULL)
LIMIT %(limit)s;

-- name: audit_queue_slots
-- The same over the whole queue, where total_limit is set.
WITH pruned AS (
    SELECT p.queue_id, max(f.queue_slot_seq) AS seq FROM {schema}.pruned_slots f JOIN {schema}.partition p ON p.partition_id = f.partition_id
    GROUP BY 1),
slot AS (
    SELECT p.queue_id, e.queue_slot_seq, e.queue_occupied, CASE e.type WHEN 'run.dispatched' THEN 1 ELSE -1 END AS change,
           lag(e.queue_slot_seq, 1, coalesce(f.seq, 0)) OVER queue_slots AS seq_before,
           lag(e.queue_occupied, 1, CASE WHEN coalesce(f.seq, 0) = 0 THEN 0 END) OVER queue_slots AS occupied_before,
           lead(e.queue_slot_seq) OVER queue_slots IS NULL AS is_last
    FROM {schema}.event e JOIN {schema}.partition p ON p.partition_id = e.partition_id LEFT JOIN pruned f ON f.queue_id = p.queue_id
    WHERE e.queue_slot_seq > coalesce(f.seq, 0) WINDOW queue_slots AS (PARTITION BY p.queue_id ORDER BY e.queue_slot_seq))
SELECT 'queue ' || q.name,
       format('queue_slot_seq %%s (%%s slots) follows %%s (%%s slots); the queue stands at %%s', s.queue_slot_seq, s.queue_occupied,
              s.seq_before, s.occupied_before, q.slot_seq)
FROM slot s JOIN {schema}.queue q ON q.queue_id = s.queue_id
WHERE s.queue_slot_seq <> s.seq_before + 1 OR s.is_last AND s.queue_slot_seq <> q.slot_seq
   OR s.queue_occupied <> s.occupied_before + s.change
      AND NOT EXISTS (SELECT 1 FROM {schema}.policy_change c WHERE c.queue_id = q.queue_id AND c.before IS NOT NULL)
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
WHERE p.waiting <> coalesce(w.n, 0)
   OR (q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL) AND p.occupied <> coalesce(s.n, 0)
   OR q.throttle_step IS NOT NULL AND p.reserved <> coalesce(s.dispatched, 0)
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
WHERE c_waiting <> waiting OR c_scheduled <> scheduled OR c_dispatched <> dispatched OR c_running <> running OR c_occupied <> dispatched + running
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
