-- name: due_timers
-- Make due timers ready, and hint at those due within the look-ahead.
SELECT * FROM {schema}.due_timers_v1(%(look_ahead)s, %(limit)s);

-- name: fold_successors
-- Do what joined transactions left to do for singleton keys.
SELECT * FROM {schema}.fold_successors_v1(%(limit)s);

-- name: fold_recorded
-- Bring what joined transactions recorded into order.
SELECT * FROM {schema}.fold_recorded_v1(%(limit)s);

-- name: expire_dispatches
-- Return unclaimed dispatch rows whose time is up to their old places.
SELECT * FROM {schema}.expire_dispatches_v1(%(limit)s);

-- name: expired_leases
-- Leases that may be recovered, oldest first, but for some runs. None, while owners that may be alive are given time.
SELECT l.run_id::text, l.token::text, r.task, q.name, l.attempt, l.failures, r.max_attempts, l.cancel_requested_at IS NOT NULL
FROM {schema}.lease l JOIN {schema}.run r ON r.run_id = l.run_id JOIN {schema}.queue q ON q.queue_id = l.queue_id
WHERE l.expires_at <= clock_timestamp() AND l.run_id <> ALL (%(without)s::uuid[]) AND NOT (SELECT {schema}.recovery_waits_v1()) ORDER BY l.expires_at LIMIT %(limit)s;

-- name: expire_deadlines
-- Apply start and finish time-outs.
SELECT * FROM {schema}.expire_deadlines_v1(%(limit)s);

-- name: dispatch_queues
-- Dispatch what has capacity, on every queue that has something ready.
SELECT * FROM {schema}.dispatch_queues_v1();

-- name: claim_unpublished
-- Take over wakeups that nobody published.
SELECT * FROM {schema}.claim_unpublished_v1(%(limit)s);

-- name: retain
-- A step towards the end of what is older than its time.
SELECT action, parent, part, looked_at FROM {schema}.retain_v1(%(keep_for)s, %(limit)s);

-- name: detached
-- Go on with a week whose table was detached.
SELECT {schema}.detached_v1(%(part)s);

-- name: detach_failed
-- Let a week rest whose table could not be detached.
SELECT {schema}.detach_failed_v1(%(parent)s, %(part)s, %(sqlstate)s, %(message)s);

-- name: note_tick
-- Note a pass, and what failed in it; for how long the oldest run has waited that could have started, and the oldest transaction lasts
-- that holds back vacuum, as far as this role sees it. Runs that their key's own limit holds are not looked at: what holds the slot is.
-- Nor are more than ten thousand keys, so that it costs the same under any backlog.
SELECT {schema}.note_tick_v1(%(failed)s),
       coalesce(greatest(clock_timestamp() - least(
           (SELECT min(head) FROM (SELECT p.head FROM {schema}.partition p
                                   WHERE p.state = 'r' AND p.tenant_id IS NULL AND p.head > '-infinity' LIMIT 10000) ready),
           (SELECT min(head) FROM (SELECT p.head FROM {schema}.partition p
                                   WHERE p.state = 'r' AND p.tenant_id IS NOT NULL AND p.head > '-infinity' LIMIT 10000) ready),
           (SELECT min(d.due_at) FROM {schema}.dispatch d)), interval '0'), interval '0'),
       coalesce(greatest(
           (SELECT max(clock_timestamp() - a.xact_start) FROM pg_stat_activity a
            WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.datname = current_database() AND a.pid <> pg_backend_pid()
              AND a.backend_type = 'client backend'),
           (SELECT max(clock_timestamp() - x.prepared) FROM pg_prepared_xacts x WHERE x.database = current_database())), interval '0');

-- name: ensure_partitions
-- Make time partitions ahead.
SELECT {schema}.ensure_partitions_v1(now(), %(weeks)s);
