-- Every run with its status, read from where it stands. Look it up by run_id; a run without an outcome is in one small table.
CREATE VIEW {schema}.run_state AS
SELECT r.run_id, r.task, q.name AS queue, r.tenant, r.concurrency_key, r.created_at,
       coalesce(o.status,
                CASE WHEN l.cancel_requested_at IS NOT NULL THEN 'cancellation_requested' WHEN l.run_id IS NOT NULL THEN 'running' END,
                d.status, w.status,
                CASE WHEN t.status = 'queued' AND t.due_at > now() THEN 'scheduled' ELSE t.status END,
                CASE WHEN h.due_at > now() THEN 'scheduled' END, 'queued') AS status,
       coalesce(o.attempt, l.attempt, d.attempt, w.attempt, t.attempt, 0) AS attempt,
       coalesce(o.failures, l.failures, d.failures, w.failures, t.failures, 0) AS failures,
       coalesce(o.due_at, l.due_at, d.due_at, w.due_at, t.due_at, h.due_at, r.run_at) AS due_at,
       o.ended_at, r.payload, o.result, o.failure, r.priority, r.idempotency_key, r.singleton_key, r.max_attempts,
       r.start_timeout, r.finish_timeout, r.actor, r.trace, r.meta, l.expires_at AS lease_expires_at, l.cancel_requested_at,
       coalesce(r.source, 'trigger') AS source, r.source_run_id
FROM {schema}.run r
JOIN {schema}.queue q ON q.queue_id = r.queue_id
LEFT JOIN {schema}.outcome o ON o.run_id = r.run_id
LEFT JOIN {schema}.lease l ON l.run_id = r.run_id
LEFT JOIN {schema}.dispatch d ON d.run_id = r.run_id
LEFT JOIN {schema}.waiting w ON w.run_id = r.run_id
LEFT JOIN {schema}.timer t ON t.run_id = r.run_id
LEFT JOIN {schema}.successor h ON h.run_id = r.run_id;

-- The newest runs below a cursor that match, newest first. Statuses are looked up where they stand: ended runs in outcome, active
-- ones in the small tables; without statuses the runs themselves are walked. A run is only looked at for what filters by it: else a
-- plan may walk over all younger runs to meet the first that has ended so.
CREATE FUNCTION {schema}.list_runs_v1(
    p_statuses text[], p_task text, p_queue text, p_tenant text, p_key text, p_source text, p_low uuid, p_high uuid,
    p_limit int) RETURNS SETOF uuid
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_queue int; v_where text := ''; v_part text; v_sources text[] := '{}'; v_from text;
BEGIN
    IF p_queue IS NOT NULL THEN
        SELECT queue_id INTO v_queue FROM {schema}.queue WHERE name = p_queue;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        v_where := v_where || ' AND r.queue_id = $2';
    END IF;
    IF p_task IS NOT NULL THEN v_where := v_where || ' AND r.task = $3'; END IF;
    IF p_tenant IS NOT NULL THEN v_where := v_where || ' AND r.tenant = $4'; END IF;
    IF p_key IS NOT NULL THEN v_where := v_where || ' AND r.concurrency_key = $5'; END IF;
    IF p_source = 'trigger' THEN
        v_where := v_where || ' AND r.source IS NULL';
    ELSIF p_source IS NOT NULL THEN
        v_where := v_where || ' AND r.source = $9';
    END IF;
    IF p_statuses IS NULL THEN
        v_sources := ARRAY['SELECT r.run_id FROM {schema}.run r WHERE r.run_id >= $6 AND r.run_id < $7' || v_where || ' ORDER BY r.run_id DESC LIMIT $8'];
    ELSE
        v_from := '{schema}.%I x' || CASE WHEN v_where <> '' THEN ' JOIN {schema}.run r ON r.run_id = x.run_id AND r.run_id >= $6 AND r.run_id < $7'
                                    ELSE '' END || ' WHERE x.run_id >= $6 AND x.run_id < $7' || v_where;
        FOREACH v_part IN ARRAY ARRAY(SELECT s FROM unnest(p_statuses) s WHERE s IN ('succeeded', 'failed', 'cancelled')) LOOP
            v_sources := v_sources || (format(v_from, 'outcome') || format(' AND x.status = %L', v_part));
        END LOOP;
        IF p_statuses && ARRAY['running', 'cancellation_requested'] THEN
            v_sources := v_sources || (format(v_from, 'lease')
                || ' AND CASE WHEN x.cancel_requested_at IS NULL THEN ''running'' ELSE ''cancellation_requested'' END = ANY ($1)');
        END IF;
        IF p_statuses && ARRAY['queued', 'scheduled', 'retrying', 'released'] THEN
            FOREACH v_part IN ARRAY ARRAY['dispatch', 'waiting', 'timer', 'successor'] LOOP
                v_sources := v_sources || (format(v_from, v_part)
                    || ' AND CASE WHEN x.status = ''queued'' AND x.due_at > now() THEN ''scheduled'' ELSE x.status END = ANY ($1)');
            END LOOP;
        END IF;
        IF 'queued' = ANY (p_statuses) THEN
            v_sources := v_sources || format(v_from, 'inbox');
        END IF;
        v_sources := ARRAY(SELECT 'SELECT x.run_id FROM ' || s || ' ORDER BY x.run_id DESC LIMIT $8' FROM unnest(v_sources) s);
    END IF;
    IF cardinality(v_sources) > 0 THEN
        RETURN QUERY EXECUTE 'SELECT run_id FROM ((' || array_to_string(v_sources, ') UNION ALL (') || ')) x ORDER BY run_id DESC LIMIT $8'
            USING p_statuses, v_queue, p_task, p_tenant, p_key, p_low, p_high, p_limit, p_source;
    END IF;
END $$;
