-- name: age_timers
-- For tests: let waiting runs be due now.
UPDATE {schema}.timer SET due_at = clock_timestamp()
WHERE run_id = ANY (%(ids)s::uuid[]) AND due_at > clock_timestamp()
RETURNING run_id;

-- name: age_earliest_timers
-- For tests: let the next runs that will be due be due now.
UPDATE {schema}.timer SET due_at = clock_timestamp()
WHERE due_at = (SELECT min(due_at) FROM {schema}.timer WHERE due_at > clock_timestamp())
RETURNING run_id;
