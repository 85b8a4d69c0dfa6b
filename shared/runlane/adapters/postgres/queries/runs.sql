-- name: get_run
-- All that is stored of one run but its history.
SELECT run_id::text, task, queue, status, tenant, concurrency_key, attempt, failures, created_at, due_at, ended_at, payload, result, failure,
       priority, idempotency_key, singleton_key, max_attempts, start_timeout, finish_timeout, actor, trace, meta, lease_expires_at,
       cancel_requested_at, source, source_run_id::text
FROM {schema}.run_state WHERE run_id = %(run_id)s::uuid;

-- name: find_owner
-- Who owns a key.
SELECT run_id::text FROM {schema}.find_owner_v1(%(task)s, %(singleton_key)s, %(idempotency_key)s, %(retained)s) i(run_id);

-- name: list_runs
-- One page of runs, newest first.
SELECT s.run_id::text, s.task, s.queue, s.status, s.tenant, s.concurrency_key, s.attempt, s.failures, s.created_at, s.due_at, s.ended_at,
       s.source, s.source_run_id::text
FROM {schema}.list_runs_v1(
    %(statuses)s::text[], %(task)s, %(queue)s, %(tenant)s, %(key)s, %(source)s,
    CASE WHEN %(after)s::timestamptz IS NULL THEN '00000000-0000-0000-0000-000000000000'::uuid ELSE {schema}.run_id_floor_v1(%(after)s::timestamptz) END,
    least(%(cursor)s::uuid, {schema}.run_id_floor_v1(%(before)s::timestamptz), 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid), %(limit)s) i(run_id)
CROSS JOIN LATERAL (SELECT * FROM {schema}.run_state s WHERE s.run_id = i.run_id OFFSET 0) s
ORDER BY s.run_id DESC;

-- name: list_events
-- The history of one run.
SELECT run_id::text, seq, type, at, actor, attempt, slot_seq, occupied, queue_slot_seq, queue_occupied, data
FROM {schema}.event WHERE run_id = %(run_id)s::uuid ORDER BY seq;

-- name: cancel_run
-- End a waiting run at once; ask a running one to stop.
SELECT * FROM {schema}.cancel_run_v1(%(run_id)s::uuid, %(actor)s, %(reason)s);

-- name: reset_idempotency_key
-- Free a key, whoever owns it.
WITH freed AS (DELETE FROM {schema}.idempotency_key WHERE task = %(task)s AND key = %(key)s RETURNING 1) SELECT count(*) FROM freed;
