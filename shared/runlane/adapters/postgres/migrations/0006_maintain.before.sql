-- Repair: what time and accidents leave behind. Each function is one bounded step, safe when run twice at once.

-- Give dispatch rows back to their old places in the order. Not p_expired: for p_reason, which is no expiry. Exact under a claim that
-- comes at the same moment: whoever deletes the row has it. Answers how many went back, and the partitions that are locked for it.
CREATE FUNCTION {schema}.give_back_v1(q {schema}.queue, p_ids uuid[], p_expired boolean, p_now timestamptz, p_reason text DEFAULT 'paused',
                                        OUT v_count int, OUT v_touched bigint[])
LANGUAGE plpgsql AS $$
DECLARE
    v_bounded boolean := q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL; v_shard int := {schema}.counter_shard_v1();
    v_runs {schema}.motion[]; v_back {schema}.motion[];
BEGIN
    SELECT array_agg((d.run_id, d.partition_id, d.due_at, d.priority, d.status, d.attempt, d.failures, d.seq, d.expiries)::{schema}.motion
                     ORDER BY d.run_id)
    INTO v_runs FROM {schema}.dispatch d WHERE d.run_id = ANY (p_ids);
    v_count := 0;
    IF v_runs IS NULL THEN
        RETURN;
    END IF;
    v_runs := {schema}.resolve_partitions_v1(q.queue_id, v_runs);
    SELECT array_agg(DISTINCT m.partition_id) INTO v_touched FROM unnest(v_runs) m;
    PERFORM {schema}.lock_partitions_v1(v_touched);
    WITH mine AS MATERIALIZED (
        SELECT d.run_id, m.partition_id AS part
        FROM unnest(v_runs) m CROSS JOIN LATERAL (
            SELECT x.run_id FROM {schema}.dispatch x WHERE x.run_id = m.run_id AND (NOT p_expired OR x.expires_at <= p_now) FOR UPDATE) d),
    taken AS (
        DELETE FROM {schema}.dispatch d USING mine WHERE d.run_id = ANY (ARRAY[mine.run_id]) RETURNING d.*, mine.part),
    numbered AS MATERIALIZED (
        SELECT t.run_id, t.part, t.due_at, t.priority, t.status, t.attempt, t.failures, t.seq, t.expiries, p.slot_seq, p.occupied,
               row_number() OVER (PARTITION BY t.part ORDER BY t.run_id) AS nth, row_number() OVER (ORDER BY t.run_id) AS place
        FROM taken t
        CROSS JOIN LATERAL (SELECT x.slot_seq, x.occupied FROM {schema}.partition x WHERE x.partition_id = t.part OFFSET 0) p),
    ev AS (
        INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied, queue_slot_seq, queue_occupied, data)
        SELECT run_id, seq + 1, 'run.dispatch_expired', p_now, attempt, CASE WHEN v_bounded THEN part END,
               CASE WHEN v_bounded THEN slot_seq + nth END, CASE WHEN v_bounded THEN occupied - nth END,
               CASE WHEN q.total_limit IS NOT NULL THEN q.slot_seq + place END,
               CASE WHEN q.total_limit IS NOT NULL THEN q.occupied - place END,
               CASE WHEN NOT p_expired THEN json_build_object('reason', p_reason) END
        FROM numbered),
    freed AS (
        UPDATE {schema}.partition p SET occupied = p.occupied - CASE WHEN v_bounded THEN x.n ELSE 0 END,
               slot_seq = p.slot_seq + CASE WHEN v_bounded THEN x.n ELSE 0 END,
               reserved = p.reserved - CASE WHEN q.throttle_step IS NOT NULL THEN x.n ELSE 0 END
        FROM (SELECT part, count(*)::int AS n FROM numbered WHERE v_bounded OR q.throttle_step IS NOT NULL GROUP BY 1) x
        WHERE p.partition_id = ANY (ARRAY[x.part]))
    SELECT array_agg((run_id, part, due_at, priority, status, attempt, failures, seq + 1,
                      expiries + CASE WHEN p_expired THEN 1 ELSE 0 END)::{schema}.motion), count(*)
    INTO v_back, v_count FROM numbered;
    IF v_back IS NOT NULL THEN
        PERFORM {schema}.enqueue_runs_v1(q.queue_id, v_back);
        PERFORM {schema}.count_v1(q.queue_id, v_shard, 0, 0, -v_count, 0);
        IF q.total_limit IS NOT NULL THEN
            UPDATE {schema}.queue SET occupied = occupied - v_count, slot_seq = slot_seq + v_count WHERE queue_id = q.queue_id;
        END IF;
    END IF;
END $$;

CREATE FUNCTION {schema}.expire_dispatches_v1(p_limit int) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp(); v_lot record; q {schema}.queue; v_back record;
BEGIN
    FOR v_lot IN
        SELECT x.queue_id, array_agg(x.run_id) AS ids
        FROM (SELECT d.queue_id, d.run_id FROM {schema}.dispatch d WHERE d.expires_at <= v_now ORDER BY d.expires_at LIMIT p_limit) x
        GROUP BY 1 ORDER BY 1
    LOOP
        q := {schema}.enter_queue_v1(v_lot.queue_id);
        SELECT * INTO v_back FROM {schema}.give_back_v1(q, v_lot.ids, true, v_now);
        IF v_back.v_count > 0 THEN
            q := {schema}.enter_queue_v1(v_lot.queue_id);
            RETURN QUERY SELECT 'counted', 0, NULL::uuid, NULL::text, q.name, NULL::text, NULL::text, NULL::timestamptz, NULL::interval,
                                NULL::json FROM generate_series(1, v_back.v_count);
            RETURN QUERY SELECT * FROM {schema}.grant_slots_v1(q, v_back.v_touched, v_now);
        END IF;
    END LOOP;
END $$;

-- Mark timers that have no hint and answer one for each: of one queue (NULL: of any), due after p_from and until p_until.
CREATE FUNCTION {schema}.hint_timers_v1(p_queue_id int, p_from timestamptz, p_until timestamptz, p_limit int, p_now timestamptz)
RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    WITH mine AS MATERIALIZED (
        SELECT run_id FROM {schema}.timer
        WHERE hinted_at IS NULL AND due_at >= p_from AND due_at <= p_until AND due_at > p_now AND (p_queue_id IS NULL OR queue_id = p_queue_id)
        ORDER BY due_at LIMIT p_limit FOR UPDATE SKIP LOCKED),
    hinted AS (
        UPDATE {schema}.timer t SET hinted_at = p_now FROM mine WHERE t.run_id = ANY (ARRAY[mine.run_id])
        RETURNING t.run_id, t.queue_id, t.due_at)
    SELECT 'hint', 0, h.run_id, NULL::text, n.name, r.tenant, r.concurrency_key, h.due_at, h.due_at - p_now, NULL::json
    FROM hinted h
    CROSS JOIN LATERAL (SELECT x.tenant, x.concurrency_key FROM {schema}.run x WHERE x.run_id = h.run_id OFFSET 0) r
    CROSS JOIN LATERAL (SELECT x.name FROM {schema}.queue x WHERE x.queue_id = h.queue_id OFFSET 0) n;
END $$;

-- Where a scan for due timers may begin, if nobody looks back. Not an SQL function, as virtual_time_v1.
CREATE FUNCTION {schema}.timer_floor_v1(p_now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((SELECT least(due_at, p_now) FROM {schema}.timer_floor) - interval '10 seconds', '-infinity');
END $$;

-- Write how far a step came: p_due_at and p_hinted_to where it was cut off, else NULL. f: what stood there before. Seldom, as it is one row
-- for all, and without waiting for it.
CREATE FUNCTION {schema}.raise_timer_floor_v1(f {schema}.timer_floor, p_due_at timestamptz, p_hinted_to timestamptz, p_now timestamptz)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_cut_at timestamptz;
BEGIN
    IF p_due_at IS NOT NULL OR p_hinted_to IS NOT NULL THEN
        v_cut_at := CASE WHEN f.cut_at > p_now - interval '1 minute' THEN f.cut_at ELSE p_now END;
    ELSIF f.cut_at IS NULL AND f.due_at BETWEEN p_now - interval '5 seconds' AND p_now THEN
        RETURN;
    END IF;
    IF f.is_only IS NULL THEN
        INSERT INTO {schema}.timer_floor (due_at, hinted_to, cut_at)
        VALUES (coalesce(p_due_at, p_now), coalesce(p_hinted_to, p_now), v_cut_at) ON CONFLICT DO NOTHING;
    ELSE
        UPDATE {schema}.timer_floor
        SET due_at = coalesce(p_due_at, p_now), hinted_to = coalesce(p_hinted_to, p_now), cut_at = v_cut_at
        WHERE is_only = (SELECT x.is_only FROM {schema}.timer_floor x FOR UPDATE SKIP LOCKED);
    END IF;
END $$;

-- Due timers become ready; those due within the look-ahead get their hint, once. With a look-ahead (the tick) the first step of a pass looks
-- back for timers of any age, those that follow it go on where it was cut off; without one (pollers) all begin at the floor.
CREATE FUNCTION {schema}.due_timers_v1(p_look_ahead interval, p_limit int) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp(); v_is_tick boolean := p_look_ahead > interval '0';
    f {schema}.timer_floor; v_goes_on boolean; v_from timestamptz; v_lot record; q {schema}.queue; v_runs {schema}.motion[];
    v_seen int := 0; v_last timestamptz; v_hints {schema}.effect[]; v_hinted_to timestamptz;
BEGIN
    SELECT * INTO f FROM {schema}.timer_floor;
    v_goes_on := v_is_tick AND coalesce(f.cut_at > v_now - interval '1 minute', false);
    v_from := CASE WHEN v_goes_on THEN f.due_at WHEN v_is_tick THEN '-infinity' ELSE {schema}.timer_floor_v1(v_now) END;
    FOR v_lot IN
        SELECT x.queue_id, array_agg(x.run_id) AS ids, max(x.due_at) AS last
        FROM (SELECT * FROM (
                  (SELECT queue_id, run_id, due_at FROM {schema}.timer
                   WHERE hinted_at IS NOT NULL AND due_at >= v_from AND due_at <= v_now ORDER BY due_at LIMIT p_limit)
                  UNION ALL
                  (SELECT queue_id, run_id, due_at FROM {schema}.timer
                   WHERE hinted_at IS NULL AND due_at >= v_from AND due_at <= v_now ORDER BY due_at LIMIT p_limit)) y
              ORDER BY due_at LIMIT p_limit) x
        GROUP BY 1 ORDER BY 1
    LOOP
        v_seen := v_seen + cardinality(v_lot.ids);
        v_last := greatest(v_last, v_lot.last);
        q := {schema}.enter_queue_v1(v_lot.queue_id);
        v_runs := {schema}.take_due_v1(v_lot.queue_id, v_lot.ids, v_now);
        IF v_runs IS NOT NULL THEN
            RETURN QUERY SELECT 'counted', 0, m.run_id, NULL::text, q.name, NULL::text, NULL::text, m.due_at, NULL::interval, NULL::json
                         FROM unnest(v_runs) m;
            RETURN QUERY SELECT * FROM {schema}.ready_runs_v1(q, {schema}.resolve_partitions_v1(v_lot.queue_id, v_runs), v_now);
        END IF;
    END LOOP;
    IF v_is_tick THEN
        SELECT array_agg(e), max(e.due_at) INTO v_hints, v_hinted_to
        FROM {schema}.hint_timers_v1(NULL, CASE WHEN v_goes_on THEN f.hinted_to ELSE v_now END, v_now + p_look_ahead, p_limit, v_now) e;
        RETURN QUERY SELECT * FROM unnest(v_hints);
    END IF;
    PERFORM {schema}.raise_timer_floor_v1(f, CASE WHEN v_seen >= p_limit THEN v_last END,
                                          CASE WHEN cardinality(v_hints) >= p_limit THEN v_hinted_to END, v_now);
END $$;

CREATE FUNCTION {schema}.fold_recorded_v1(p_limit int) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_queue record; v_shard int := {schema}.counter_shard_v1(); v_folded int;
BEGIN
    FOR v_queue IN
        SELECT q.name, (SELECT count(*) FROM (SELECT 1 FROM {schema}.inbox i WHERE i.queue_id = q.queue_id LIMIT p_limit) x) AS n
        FROM {schema}.queue q WHERE EXISTS (SELECT 1 FROM {schema}.inbox i WHERE i.queue_id = q.queue_id OFFSET 0) ORDER BY q.queue_id
    LOOP
        RETURN QUERY SELECT 'counted', 0, NULL::uuid, NULL::text, v_queue.name, NULL::text, NULL::text, NULL::timestamptz, NULL::interval,
                            NULL::json FROM generate_series(1, v_queue.n);
        RETURN QUERY SELECT * FROM {schema}.dispatch_queue_v1(v_queue.name, p_limit);
    END LOOP;
    IF EXISTS (SELECT 1 FROM {schema}.queue_counter_delta) THEN
        WITH mine AS MATERIALIZED (SELECT ctid FROM {schema}.queue_counter_delta LIMIT 10000 FOR UPDATE SKIP LOCKED),
        d AS (DELETE FROM {schema}.queue_counter_delta WHERE ctid = ANY (ARRAY(SELECT ctid FROM mine)) RETURNING *)
        SELECT count(*) INTO v_folded FROM (SELECT queue_id, sum(scheduled) AS n FROM d GROUP BY 1 ORDER BY 1) x
        CROSS JOIN LATERAL {schema}.count_v1(x.queue_id, v_shard, 0, x.n, 0, 0);
    END IF;
END $$;

CREATE FUNCTION {schema}.dispatch_queues_v1() RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_queue record;
BEGIN
    FOR v_queue IN SELECT q.name FROM {schema}.queue q WHERE {schema}.has_ready_v1(q.queue_id) ORDER BY q.queue_id LOOP
        RETURN QUERY SELECT * FROM {schema}.dispatch_queue_v1(v_queue.name, 1000);
    END LOOP;
    RETURN QUERY SELECT h.* FROM {schema}.queue q CROSS JOIN LATERAL {schema}.hint_ahead_v1(q, interval '4 minutes', 500, clock_timestamp()) h
                 WHERE q.throttle_step IS NOT NULL AND q.paused_at IS NULL;
END $$;

-- Wakeups that were never published, or whose publisher died, for publishing by the caller in the order of their dispatch.
CREATE FUNCTION {schema}.claim_unpublished_v1(p_limit int) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH mine AS MATERIALIZED (
        SELECT run_id FROM {schema}.dispatch
        WHERE publish_status IN ('pending', 'failed') OR (publish_status = 'claimed' AND publish_claimed_at <= v_now - interval '15 seconds')
        ORDER BY run_id LIMIT p_limit FOR UPDATE SKIP LOCKED),
    taken AS (
        UPDATE {schema}.dispatch d SET publish_status = 'claimed', publish_claimed_at = v_now, publish_attempts = publish_attempts + 1
        FROM mine WHERE d.run_id = ANY (ARRAY[mine.run_id]) RETURNING d.run_id, d.queue_id, d.due_at, d.dispatch_seq, d.start_at)
    SELECT 'wakeup', 0, t.run_id, NULL::text, q.name, r.tenant, r.concurrency_key, t.due_at,
           CASE WHEN t.start_at > v_now THEN t.start_at - v_now END, NULL::json
    FROM taken t
    CROSS JOIN LATERAL (SELECT x.tenant, x.concurrency_key FROM {schema}.run x WHERE x.run_id = t.run_id OFFSET 0) r
    CROSS JOIN LATERAL (SELECT x.name FROM {schema}.queue x WHERE x.queue_id = t.queue_id OFFSET 0) q
    ORDER BY t.dispatch_seq;
END $$;

-- Write what became of wakeups. A hint that failed loses its mark, so that the tick sends it again. Timers and partitions first, as in the lock order; those
-- that somebody is moving are passed over, for they get a hint of their own, or need none. p_ages: seconds since each was handed to the
-- transport; what was claimed for publishing since is another wakeup, of which nothing is known here.
CREATE FUNCTION {schema}.mark_published_v1(p_ids uuid[], p_statuses text[], p_ages float8[], p_failed_hints uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp();
BEGIN
    IF cardinality(p_failed_hints) > 0 THEN
        WITH mine AS MATERIALIZED (SELECT run_id FROM {schema}.timer WHERE run_id = ANY (p_failed_hints) ORDER BY run_id FOR UPDATE SKIP LOCKED)
        UPDATE {schema}.timer t SET hinted_at = NULL FROM mine WHERE t.run_id = ANY (ARRAY[mine.run_id]);
        UPDATE {schema}.partition SET hinted_at = NULL WHERE partition_id = ANY (ARRAY(
            SELECT p.partition_id FROM {schema}.partition p WHERE p.state = 't' AND p.partition_id = ANY (ARRAY(
                SELECT w.partition_id FROM {schema}.waiting w WHERE w.run_id = ANY (p_failed_hints))) FOR NO KEY UPDATE SKIP LOCKED));
    END IF;
    IF cardinality(p_ids) > 0 THEN
        WITH mine AS MATERIALIZED (
            SELECT d.run_id, i.status
            FROM (SELECT * FROM unnest(p_ids, p_statuses, p_ages) i(id, status, age) ORDER BY 1) i CROSS JOIN LATERAL (
                SELECT x.run_id FROM {schema}.dispatch x
                WHERE x.run_id = i.id AND x.publish_status = 'claimed' AND x.publish_claimed_at <= v_now - make_interval(secs => i.age)
                FOR UPDATE SKIP LOCKED) d)
        UPDATE {schema}.dispatch d SET publish_status = mine.status FROM mine WHERE d.run_id = ANY (ARRAY[mine.run_id]);
    END IF;
END $$;

-- Time partitions by the id itself: one a week, made ahead. Attached, not made in place: that would wait for every transaction that
-- has used the table, and all others behind it. Answers how many were made. It runs as the schema's owner, since the
-- runtime's role owns no table; its names are constants and its numbers typed. A week is one of hours: days are the session's time zone's.
CREATE FUNCTION {schema}.ensure_partitions_v1(p_from timestamptz, p_weeks int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_table text; v_start timestamptz; v_name text; v_made int := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(1919317612, 0);
    FOR i IN 0..least(p_weeks, 60) LOOP
        v_start := date_trunc('week', p_from AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' + i * interval '168 hours';
        FOREACH v_table IN ARRAY ARRAY['run', 'outcome', 'event'] LOOP
            v_name := v_table || to_char(v_start AT TIME ZONE 'UTC', '"_"YYYYMMDD');
            IF to_regclass(format('%I.%I', {literal}, v_name)) IS NULL THEN
                EXECUTE format('CREATE TABLE %I.%I (LIKE %I.%I INCLUDING ALL)', {literal}, v_name, {literal}, v_table);
                EXECUTE format('ALTER TABLE %I.%I ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)', {literal}, v_table, {literal}, v_name,
                    {schema}.run_id_floor_v1(v_start), {schema}.run_id_floor_v1(v_start + interval '168 hours'));
                v_made := v_made + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN v_made;
END $$;
REVOKE ALL ON FUNCTION {schema}.ensure_partitions_v1(timestamptz, int) FROM PUBLIC;

-- The least run id of an instant.
CREATE FUNCTION {schema}.run_id_floor_v1(p_at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM p_at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
