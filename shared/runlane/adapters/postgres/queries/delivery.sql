-- name: claim_runs
-- Turn wakeups into leases.
SELECT * FROM {schema}.claim_runs_v1(%(ids)s::uuid[], %(lease)s, %(worker)s, %(own_only)s);

-- name: forward_runs
-- Dispatch runs that may not start where their wakeups came.
SELECT * FROM {schema}.forward_runs_v1(%(ids)s::uuid[]);

-- name: claim_oldest
-- Lease the oldest unclaimed dispatch rows of some queues.
SELECT * FROM {schema}.claim_oldest_v1(%(queues)s::text[], %(limit)s, %(lease)s, %(worker)s);

-- name: heartbeat
-- Extend every lease of this process whose token is still stored.
SELECT run_id, cancellation_requested FROM {schema}.heartbeat_v1(%(ids)s::uuid[], %(tokens)s::uuid[], %(lease)s);

-- name: read_leases
-- Read cancellations without extending anything.
SELECT l.run_id::text, l.cancel_requested_at IS NOT NULL
FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[]) i(id, token) JOIN {schema}.lease l ON l.run_id = i.id AND l.token = i.token;

-- name: settle_runs
-- Outcomes, events, freed capacity and the next dispatch rows.
SELECT * FROM {schema}.settle_runs_v1(%(settlements)s::json, %(ids)s::uuid[], %(plain)s);

-- name: settle_and_claim
-- The same, and leases for the oldest unclaimed dispatch rows.
SELECT * FROM {schema}.settle_and_claim_v1(%(settlements)s::json, %(ids)s::uuid[], %(plain)s, %(queues)s::text[], %(limit)s, %(lease)s, %(worker)s);

-- name: look
-- What an idle worker may have to do.
SELECT is_dispatched, recorded, due_in, starts_in FROM {schema}.look_v1(%(queues)s::text[]);

-- name: keep_polled
-- Somebody listens on these queues for a while.
SELECT {schema}.keep_polled_v1(%(queues)s::text[], %(for)s);
