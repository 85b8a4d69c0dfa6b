-- The hot statements have one right plan: nested loops over indexes, whatever the statistics of small, fast-changing tables say.
-- Pinned on the functions through which callers enter, so that no session setting is needed; what they call inherits it.
CREATE FUNCTION {schema}.pin_plans_v1(p_functions text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_name text;
BEGIN
    FOREACH v_name IN ARRAY p_functions LOOP
        EXECUTE format('ALTER FUNCTION {schema}.%s SET enable_seqscan = off', v_name);
        EXECUTE format('ALTER FUNCTION {schema}.%s SET enable_hashjoin = off', v_name);
        EXECUTE format('ALTER FUNCTION {schema}.%s SET enable_mergejoin = off', v_name);
        EXECUTE format('ALTER FUNCTION {schema}.%s SET jit = off', v_name);
        EXECUTE format('ALTER FUNCTION {schema}.%s SET plan_cache_mode = force_generic_plan', v_name);
    END LOOP;
END $$;

SELECT {schema}.pin_plans_v1(ARRAY[
        'trigger_runs_v1(json, boolean)',
        'trigger_alike_v1(text, text, json, text[], text[], int[], int, interval, interval, text, json, json)', 'dispatch_queue_v1(text, int)', 'claim_runs_v1(uuid[], interval, text, boolean)',
        'forward_runs_v1(uuid[])',
        'claim_oldest_v1(text[], int, interval, text)', 'settle_runs_v1(json, uuid[], boolean, boolean)',
        'settle_and_claim_v1(json, uuid[], boolean, text[], int, interval, text)', 'heartbeat_v1(uuid[], uuid[], interval)',
        'expire_dispatches_v1(int)', 'due_timers_v1(interval, int)', 'fold_recorded_v1(int)', 'dispatch_queues_v1()',
        'claim_unpublished_v1(int)', 'mark_published_v1(uuid[], text[], float8[], uuid[])', 'cancel_run_v1(uuid, text, text)',
        'expire_deadlines_v1(int)', 'record_runs_v1(json, boolean, timestamptz)', 'pause_v1(text, text, text)', 'resume_v1(text, text, text)',
        'write_policy_v1(text, int, int, interval, int, int, interval, int, json, text)']);

-- Who is ready is read in the order of its index. Where statistics call the table empty, and the index has grown, that of the keys with a
-- sort behind it may look as cheap, and walks over every partition of the queue.
ALTER FUNCTION {schema}.dispatch_fairly_v1({schema}.queue, int, timestamptz) SET enable_sort = off;
