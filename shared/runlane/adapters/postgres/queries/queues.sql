-- name: read_policies
-- The policies in force.
SELECT name, policy FROM {schema}.queue ORDER BY name;

-- name: write_policy
-- Put one policy in force, and give out what a raised limit frees.
SELECT * FROM {schema}.write_policy_v1(%(name)s, %(concurrency_limit)s, %(total_limit)s, %(dispatch_timeout)s, %(dispatch_window)s,
                                   %(throttle_limit)s, %(throttle_period)s, %(throttle_burst)s, %(policy)s::json, %(actor)s);

-- name: pause
-- Give unclaimed dispatch rows back and dispatch no more.
SELECT * FROM {schema}.pause_v1(%(queue)s, %(tenant)s, %(key)s);

-- name: resume
-- Lift a pause and dispatch.
SELECT * FROM {schema}.resume_v1(%(queue)s, %(tenant)s, %(key)s);

-- name: set_weight
-- A tenant's share of its queue.
SELECT {schema}.set_weight_v1(%(queue)s, %(tenant)s, %(weight)s);

-- name: stats
-- Counters of queues, from counter shards and partition rows; no run is read.
SELECT q.name, c.waiting + h.held, c.scheduled + coalesce(d.scheduled, 0), c.waiting + coalesce(i.recorded, 0), c.dispatched, c.running,
       clock_timestamp() - p.oldest, coalesce(p.partitions, 0), coalesce(p.blocked, 0), coalesce(p.paused, 0), coalesce(p.ready, 0),
       coalesce(p.throttled, 0),
       q.total_limit IS NOT NULL AND q.occupied >= q.total_limit, q.paused_at IS NOT NULL, coalesce(i.recorded, 0)
FROM {schema}.queue q
JOIN LATERAL (SELECT sum(waiting)::bigint AS waiting, sum(scheduled)::bigint AS scheduled, sum(dispatched)::bigint AS dispatched,
                     sum(running)::bigint AS running FROM {schema}.queue_counter WHERE queue_id = q.queue_id) c ON true
LEFT JOIN LATERAL (SELECT sum(scheduled)::bigint AS scheduled FROM {schema}.queue_counter_delta WHERE queue_id = q.queue_id) d ON true
LEFT JOIN LATERAL (SELECT count(*) AS recorded FROM {schema}.inbox WHERE queue_id = q.queue_id) i ON true
JOIN LATERAL (SELECT count(*) AS held FROM {schema}.successor WHERE queue_id = q.queue_id) h ON true
LEFT JOIN LATERAL (SELECT count(*) AS partitions, count(*) FILTER (WHERE state = 'b') AS blocked, count(*) FILTER (WHERE state = 'p') AS paused,
                          count(*) FILTER (WHERE state = 'r') AS ready, count(*) FILTER (WHERE state = 't') AS throttled,
                          min(head) FILTER (WHERE waiting > 0 AND head > '-infinity') AS oldest
                   FROM {schema}.partition WHERE queue_id = q.queue_id) p ON true
WHERE %(queues)s::text[] IS NULL OR q.name = ANY (%(queues)s::text[])
ORDER BY q.name;
