-- name: trigger_runs
-- Record runs, and when eager dispatch what has capacity.
SELECT * FROM {schema}.trigger_runs_v1(%(runs)s::json, %(eager)s);

-- name: trigger_alike
-- The same for runs, due now, that differ in little.
SELECT * FROM {schema}.trigger_alike_v1(
    %(queue)s, %(task)s, %(payloads)s::json, %(tenants)s::text[], %(keys)s::text[], %(priorities)s::int[], %(max_attempts)s,
    %(start_timeout)s, %(finish_timeout)s, %(actor)s, %(trace)s::json, %(meta)s::json);

-- name: record_runs
-- Record runs in the caller's transaction: inserts of own rows only.
SELECT * FROM {schema}.record_runs_v1(%(runs)s::json, false, clock_timestamp());

-- name: dispatch_recorded
-- Fold what was recorded on a queue and give out its free capacity.
SELECT * FROM {schema}.dispatch_recorded_v1(%(queue)s, %(limit)s);

-- name: mark_published
-- Write what became of wakeups at the transport.
SELECT {schema}.mark_published_v1(%(ids)s::uuid[], %(statuses)s::text[], %(ages)s::float8[], %(failed_hints)s::uuid[]);
