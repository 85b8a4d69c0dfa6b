-- Resident workers: who is told that a run was dispatched. Reasons and figures: docs/decisions/0003-resident-workers.md.

-- Tell listeners of a queue on which nothing was dispatched. Where something is, they have been told, or all their places are taken and
-- they look again when one is free. So what comes in bursts is told once: a commit that notifies waits for every other one that does. Of a
-- throttled queue only rows count whose time has come: for the others they wait asleep.
CREATE FUNCTION {schema}.tell_pollers_v1(p_queue_id int, p_name text, p_throttled boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp();
BEGIN
    IF p_throttled AND NOT EXISTS (SELECT 1 FROM {schema}.dispatch WHERE queue_id = p_queue_id AND start_at <= v_now)
       OR NOT p_throttled AND NOT EXISTS (SELECT 1 FROM {schema}.dispatch WHERE queue_id = p_queue_id) THEN
        PERFORM pg_notify({literal}, p_name);
    END IF;
END $$;

-- Somebody listens on these queues, for so long from now. One queue after the other, in the lock order.
CREATE FUNCTION {schema}.keep_polled_v1(p_queues text[], p_for interval) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE v_queue_id int; v_count int := 0;
BEGIN
    FOR v_queue_id IN SELECT queue_id FROM {schema}.queue WHERE name = ANY (p_queues) ORDER BY queue_id LOOP
        UPDATE {schema}.queue SET polled_until = greatest(polled_until, clock_timestamp() + p_for) WHERE queue_id = v_queue_id;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- What an idle worker may have to do: may a dispatched run of these queues start, on which of them are runs recorded or throttled partitions
-- to be brought back for which there is room, when is the next timer of any queue due, if within five minutes, and when may a throttled run of these start next?
-- Timers are looked for from the floor on, and not beyond: entries of those that have gone, or were moved, are passed over. Plans are pinned
-- here: where one queue holds all rows, a scan for another's looks cheap and reads them all.
CREATE FUNCTION {schema}.look_v1(p_queues text[], OUT is_dispatched boolean, OUT recorded text[], OUT due_in interval, OUT starts_in interval)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_now timestamptz := clock_timestamp(); v_from timestamptz := {schema}.timer_floor_v1(v_now); v_until timestamptz := v_now + interval '5 minutes';
BEGIN
    is_dispatched := EXISTS (SELECT 1 FROM {schema}.queue q WHERE q.name = ANY (p_queues) AND CASE WHEN q.throttle_step IS NULL
        THEN EXISTS (SELECT 1 FROM {schema}.dispatch d WHERE d.queue_id = q.queue_id OFFSET 0)
        ELSE EXISTS (SELECT 1 FROM {schema}.dispatch d WHERE d.queue_id = q.queue_id AND d.start_at <= v_now OFFSET 0) END);
    recorded := ARRAY(SELECT q.name FROM {schema}.queue q WHERE q.name = ANY (p_queues)
                      AND (EXISTS (SELECT 1 FROM {schema}.inbox i WHERE i.queue_id = q.queue_id OFFSET 0)
                           OR CASE WHEN EXISTS (SELECT 1 FROM {schema}.partition p WHERE p.queue_id = q.queue_id AND p.state = 't'
                                                AND p.ready_at <= v_now OFFSET 0) THEN {schema}.window_room_v1(q) > 0 ELSE false END)
                      ORDER BY q.queue_id);
    due_in := least((SELECT t.due_at FROM {schema}.timer t
                     WHERE t.hinted_at IS NOT NULL AND t.due_at >= v_from AND t.due_at <= v_until ORDER BY t.due_at LIMIT 1),
                    (SELECT t.due_at FROM {schema}.timer t
                     WHERE t.hinted_at IS NULL AND t.due_at >= v_from AND t.due_at <= v_until ORDER BY t.due_at LIMIT 1))
              - clock_timestamp();
    starts_in := (
        SELECT min(least((SELECT d.start_at FROM {schema}.dispatch d WHERE d.queue_id = q.queue_id AND d.start_at > v_now ORDER BY d.start_at LIMIT 1),
                         (SELECT p.ready_at FROM {schema}.partition p WHERE p.queue_id = q.queue_id AND p.state = 't' AND {schema}.window_room_v1(q) > 0
                          ORDER BY p.ready_at LIMIT 1)))
        FROM {schema}.queue q WHERE q.name = ANY (p_queues) AND q.throttle_step IS NOT NULL AND q.paused_at IS NULL) - v_now;
END $$;
