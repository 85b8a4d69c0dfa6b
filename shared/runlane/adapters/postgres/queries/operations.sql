-- name: run_now
-- Record one run and lease it.
SELECT * FROM {schema}.run_now_v1(%(runs)s::json, %(lease)s, %(worker)s);

-- name: read_origins
-- What retries and reruns are made of.
SELECT * FROM {schema}.read_origins_v1(%(ids)s::uuid[]);

-- name: rerun_runs
-- Children of ended runs, or once each of failed ones.
SELECT * FROM {schema}.rerun_runs_v1(%(runs)s::json, %(only_failed)s);

-- name: cancel_runs
-- Cancel a group of runs.
SELECT * FROM {schema}.cancel_runs_v1(%(ids)s::uuid[], %(actor)s, %(reason)s);

-- name: reschedule_run
-- Move a waiting run to another due time.
SELECT * FROM {schema}.reschedule_run_v1(%(run_id)s::uuid, %(run_at)s, %(actor)s);

-- name: prune_runs
-- Delete ended runs by age and status, a bounded step.
SELECT matched, pruned, last_id FROM {schema}.prune_runs_v1(%(older_than)s, %(statuses)s::text[], %(task)s, %(queue)s, %(after)s::uuid,
                                                        %(limit)s, %(dry_run)s);
