-- Control by people: cancel, pause, resume, weights, policies.

-- Take a run out of successor, timer or inbox. Before any partition is locked: whoever fires a timer or folds waits for the partition
-- next. In the order in which a run moves, so that none is missed.
CREATE FUNCTION {schema}.take_sleeping_v1(p_run_id uuid, p_unstarted boolean, p_wait boolean, OUT run {schema}.motion, OUT origin text)
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT p_wait THEN
        PERFORM 1 FROM {schema}.timer t WHERE t.run_id = p_run_id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    DELETE FROM {schema}.successor s WHERE s.run_id = p_run_id
    RETURNING s.run_id, NULL::bigint, s.due_at, s.priority, 'queued', 0, 0, s.seq, 0 INTO run;
    IF FOUND THEN
        origin := 'successor';
        RETURN;
    END IF;
    DELETE FROM {schema}.timer t WHERE t.run_id = p_run_id AND (t.attempt = 0 OR NOT p_unstarted)
    RETURNING t.run_id, NULL::bigint, t.due_at, t.priority, t.status, t.attempt, t.failures, t.seq, 0 INTO run;
    IF FOUND THEN
        origin := 'timer';
        RETURN;
    END IF;
    DELETE FROM {schema}.inbox b USING {schema}.run r WHERE b.run_id = p_run_id AND r.run_id = p_run_id
    RETURNING b.run_id, NULL::bigint, r.run_at, r.priority, 'queued', 0, 0, 1, 0 INTO run;
    IF FOUND THEN
        origin := 'inbox';
    END IF;
END $$;

-- Take a run out of the order, or ask it to stop under its lease. The caller has locked its partition.
-- origin: where it was taken from; NULL: nothing was taken, and verdict is its status (NULL: it has started, p_kind 'start').
CREATE FUNCTION {schema}.take_or_ask_v1(p_run_id uuid, p_kind text, p_actor text, p_data json, p_now timestamptz,
                                    OUT run {schema}.motion, OUT origin text, OUT verdict text)
LANGUAGE plpgsql AS $$
DECLARE v_found record;
BEGIN
    FOR i IN 1..50 LOOP
        SELECT o.status INTO verdict FROM {schema}.outcome o WHERE o.run_id = p_run_id;
        IF FOUND THEN
            RETURN;
        END IF;
        DELETE FROM {schema}.waiting w WHERE w.run_id = p_run_id AND (w.attempt = 0 OR p_kind <> 'start')
        RETURNING w.run_id, w.partition_id, w.due_at, w.priority, w.status, w.attempt, w.failures, w.seq, w.expiries INTO run;
        IF FOUND THEN
            origin := 'waiting';
            RETURN;
        END IF;
        DELETE FROM {schema}.dispatch d WHERE d.run_id = p_run_id AND (d.attempt = 0 OR p_kind <> 'start')
        RETURNING d.run_id, d.partition_id, d.due_at, d.priority, d.status, d.attempt, d.failures, d.seq, d.expiries INTO run;
        IF FOUND THEN
            origin := 'dispatch';
            RETURN;
        END IF;
        SELECT * INTO v_found FROM {schema}.take_sleeping_v1(p_run_id, p_kind = 'start', false);
        IF v_found.origin IS NOT NULL THEN
            run := v_found.run;
            origin := v_found.origin;
            RETURN;
        END IF;
        IF p_kind = 'start' THEN
            RETURN;
        END IF;
        UPDATE {schema}.lease l SET cancel_requested_at = p_now, seq = l.seq + 1
        WHERE l.run_id = p_run_id AND l.cancel_requested_at IS NULL
        RETURNING l.run_id, l.partition_id, l.due_at, l.priority, l.status, l.attempt, l.failures, l.seq, 0 INTO run;
        IF FOUND THEN
            INSERT INTO {schema}.event (run_id, seq, type, at, attempt, actor, data)
            VALUES (p_run_id, run.seq, 'run.cancellation_requested', p_now, run.attempt, p_actor, p_data);
        END IF;
        IF EXISTS (SELECT 1 FROM {schema}.lease l WHERE l.run_id = p_run_id) THEN
            verdict := 'cancellation_requested';
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'run % is moving', p_run_id USING ERRCODE = 'RL002';
END $$;

-- End a run that was taken out, and give its slot back. Its place is counted out by the caller (count_out_v1).
CREATE FUNCTION {schema}.end_cancelled_v1(q {schema}.queue, m {schema}.motion, p_origin text, p_actor text, p_data json, p_now timestamptz)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_slot boolean := p_origin = 'dispatch' AND (q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL);
    v_queue_slot boolean := v_slot AND q.total_limit IS NOT NULL;
    p {schema}.partition;
BEGIN
    IF v_slot THEN
        UPDATE {schema}.partition x SET occupied = x.occupied - 1, slot_seq = x.slot_seq + 1 WHERE x.partition_id = m.partition_id RETURNING * INTO p;
        IF v_queue_slot THEN
            UPDATE {schema}.queue SET occupied = occupied - 1, slot_seq = slot_seq + 1 WHERE queue_id = q.queue_id RETURNING * INTO q;
        END IF;
    END IF;
    IF p_origin = 'dispatch' AND q.throttle_step IS NOT NULL THEN
        UPDATE {schema}.partition x SET reserved = x.reserved - 1 WHERE x.partition_id = m.partition_id;
    END IF;
    INSERT INTO {schema}.outcome (run_id, status, attempt, failures, seq, ended_at, due_at)
    VALUES (m.run_id, 'cancelled', m.attempt, m.failures, m.seq + 1, p_now, m.due_at);
    INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied, queue_slot_seq, queue_occupied, actor, data)
    VALUES (m.run_id, m.seq + 1, 'run.cancelled', p_now, m.attempt, p.partition_id, p.slot_seq, p.occupied,
            CASE WHEN v_queue_slot THEN q.slot_seq END, CASE WHEN v_queue_slot THEN q.occupied END, p_actor, p_data);
END $$;

-- Count runs out of where they were taken from, at once: one update a run of the same row costs the square of their number.
CREATE FUNCTION {schema}.count_out_v1(p_queue_id int, p_origins text[], p_partitions bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_shard int := {schema}.counter_shard_v1();
BEGIN
    -- The hint of a throttled partition may have been for one of them.
    UPDATE {schema}.partition p SET waiting = p.waiting - x.n, state = CASE WHEN p.waiting <= x.n THEN 'e' ELSE p.state END, hinted_at = NULL
    FROM (SELECT o.id, count(*)::int AS n FROM unnest(p_origins, p_partitions) o(origin, id) WHERE o.origin = 'waiting' GROUP BY 1) x
    WHERE p.partition_id = ANY (ARRAY[x.id]);
    PERFORM {schema}.count_v1(p_queue_id, v_shard, -x.waiting, -x.scheduled, -x.dispatched, 0)
    FROM (SELECT count(*) FILTER (WHERE o = 'waiting') AS waiting, count(*) FILTER (WHERE o = 'timer') AS scheduled,
                 count(*) FILTER (WHERE o = 'dispatch') AS dispatched FROM unnest(p_origins) o) x;
END $$;

-- Stop runs of one queue, each by 'cancel', 'start' / 'finish' for a time-out, or 'replace' by its successor. Waiting ones end at once;
-- leased ones are asked to stop (unless it is only the start time-out). Answers a 'cancelled' effect for each with its status then, and
-- wakeups. p_runs: new ones of the queue, to be put in order with what becomes free. The caller has locked their singleton keys.
CREATE FUNCTION {schema}.stop_runs_v1(
    p_queue_id int, p_ids uuid[], p_kinds text[], p_actor text, p_reason text, p_runs {schema}.motion[] DEFAULT NULL) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    v_owners uuid[] := (SELECT array_agg(k.run_id) FROM {schema}.singleton_key k WHERE k.run_id = ANY (p_ids)); v_heirs {schema}.heir[]; v_ended uuid[] := '{}';
    q {schema}.queue := {schema}.enter_queue_v1(p_queue_id); v_now timestamptz; v_place int; v_found record; v_data json;
    v_runs {schema}.motion[]; v_origins text[]; v_awake boolean := false; v_touched bigint[] := '{}'; v_left text[] := '{}'; v_freed boolean;
BEGIN
    FOR v_place IN 1..cardinality(p_ids) LOOP
        SELECT * INTO v_found FROM {schema}.take_sleeping_v1(p_ids[v_place], p_kinds[v_place] = 'start', true);
        v_runs[v_place] := v_found.run;
        v_origins[v_place] := v_found.origin;
        v_awake := v_awake OR v_found.origin IS NULL;
    END LOOP;
    IF v_owners IS NOT NULL THEN
        v_heirs := {schema}.heirs_v1(v_owners, p_queue_id);
        p_runs := p_runs || {schema}.joining_v1(v_heirs);
    END IF;
    IF p_runs IS NOT NULL THEN
        p_runs := {schema}.resolve_partitions_v1(p_queue_id, p_runs);
    END IF;
    IF v_awake OR p_runs IS NOT NULL THEN
        PERFORM {schema}.lock_partitions_v1(ARRAY(SELECT m.partition_id FROM unnest(p_runs) m) || ARRAY(
            SELECT p.partition_id FROM unnest(p_ids, v_origins) i(id, origin)
            CROSS JOIN LATERAL (SELECT x.tenant, x.concurrency_key FROM {schema}.run x WHERE x.run_id = i.id OFFSET 0) r
            CROSS JOIN LATERAL (
                SELECT x.partition_id FROM {schema}.partition x WHERE x.queue_id = p_queue_id AND coalesce(x.tenant, '') = coalesce(r.tenant, '')
                AND coalesce(x.concurrency_key, '') = coalesce(r.concurrency_key, '') OFFSET 0) p
            WHERE i.origin IS NULL));
    END IF;
    v_now := clock_timestamp();
    FOR v_place IN 1..cardinality(p_ids) LOOP
        v_data := json_strip_nulls(json_build_object(
            'reason', coalesce(p_reason, CASE p_kinds[v_place] WHEN 'replace' THEN 'superseded' WHEN 'cancel' THEN NULL
                                         ELSE p_kinds[v_place] || '_timeout' END),
            'by', CASE p_kinds[v_place] WHEN 'replace' THEN {schema}.next_of_v1(p_ids[v_place]) END));
        IF v_origins[v_place] IS NULL THEN
            SELECT * INTO v_found FROM {schema}.take_or_ask_v1(p_ids[v_place], p_kinds[v_place], p_actor, v_data, v_now);
        ELSE
            SELECT v_runs[v_place] AS run, v_origins[v_place] AS origin, NULL::text AS verdict INTO v_found;
        END IF;
        IF v_found.origin IS NOT NULL THEN
            PERFORM {schema}.end_cancelled_v1(q, v_found.run, v_found.origin, p_actor, v_data, v_now);
            v_left := v_left || v_found.origin;
            v_touched := v_touched || (v_found.run).partition_id;
            v_ended := v_ended || p_ids[v_place];
            v_found.verdict := 'cancelled';
        END IF;
        IF v_found.verdict IS NOT NULL THEN
            RETURN NEXT ('cancelled', 0, p_ids[v_place], v_found.verdict, q.name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
        END IF;
    END LOOP;
    v_freed := 'dispatch' = ANY (v_left);
    IF cardinality(v_left) > 0 THEN
        PERFORM {schema}.count_out_v1(p_queue_id, v_left, v_touched);
    END IF;
    IF v_owners IS NOT NULL THEN
        RETURN QUERY SELECT * FROM {schema}.succeed_v1(v_ended, v_heirs, v_now);
        p_runs := {schema}.without_held_v1(p_runs);
    END IF;
    IF p_runs IS NOT NULL THEN
        PERFORM {schema}.enqueue_runs_v1(p_queue_id, p_runs);
        v_touched := v_touched || ARRAY(SELECT DISTINCT m.partition_id FROM unnest(p_runs) m);
    END IF;
    IF v_freed OR p_runs IS NOT NULL THEN
        q := {schema}.enter_queue_v1(p_queue_id);
        RETURN QUERY SELECT * FROM {schema}.grant_slots_v1(q, v_touched, v_now);
    ELSIF q.throttle_step > q.throttle_ahead / 2 THEN
        RETURN QUERY SELECT * FROM {schema}.hint_throttled_v1(q, v_touched, v_now);
    END IF;
END $$;

CREATE FUNCTION {schema}.cancel_run_v1(p_run_id uuid, p_actor text, p_reason text) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_queue int;
BEGIN
    SELECT r.queue_id INTO v_queue FROM {schema}.run r WHERE r.run_id = p_run_id;
    IF FOUND THEN
        PERFORM {schema}.lock_singletons_v1(ARRAY[p_run_id]);
        RETURN QUERY SELECT * FROM {schema}.stop_runs_v1(v_queue, ARRAY[p_run_id], ARRAY['cancel'], p_actor, p_reason);
    END IF;
END $$;

-- Apply time-outs that have passed; most are of runs that have ended long ago.
CREATE FUNCTION {schema}.expire_deadlines_v1(p_limit int) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_ids uuid[]; v_kinds text[]; v_lot record;
BEGIN
    WITH passed AS (
        DELETE FROM {schema}.deadline d USING (
            SELECT at, run_id, kind FROM {schema}.deadline WHERE at <= clock_timestamp() ORDER BY at LIMIT p_limit FOR UPDATE SKIP LOCKED) x
        WHERE d.at = ANY (ARRAY[x.at]) AND d.run_id = ANY (ARRAY[x.run_id]) AND d.kind = x.kind RETURNING d.run_id, d.kind)
    SELECT array_agg(run_id), array_agg(kind) INTO v_ids, v_kinds FROM passed;
    RETURN QUERY SELECT 'counted', 0, i, NULL::text, NULL::text, NULL::text, NULL::text, NULL::timestamptz, NULL::interval, NULL::json
                 FROM unnest(v_ids) i;
    PERFORM {schema}.lock_singletons_v1(v_ids);
    FOR v_lot IN
        SELECT r.queue_id, array_agg(i.id ORDER BY i.id, i.kind) AS ids, array_agg(i.kind ORDER BY i.id, i.kind) AS kinds
        FROM unnest(v_ids, v_kinds) i(id, kind)
        CROSS JOIN LATERAL (SELECT x.queue_id FROM {schema}.run x WHERE x.run_id = i.id OFFSET 0) r
        WHERE NOT EXISTS (SELECT 1 FROM {schema}.outcome o WHERE o.run_id = i.id OFFSET 0) GROUP BY 1 ORDER BY 1
    LOOP
        RETURN QUERY SELECT * FROM {schema}.stop_runs_v1(v_lot.queue_id, v_lot.ids, v_lot.kinds, 'runlane', NULL);
    END LOOP;
END $$;

-- Alone on the queue: waits until every transaction that entered it has ended.
CREATE FUNCTION {schema}.enter_queue_alone_v1(p_queue text) RETURNS {schema}.queue
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue;
BEGIN
    SELECT * INTO q FROM {schema}.queue WHERE name = p_queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue % is not in the database: run `runlane migrate`', quote_literal(p_queue) USING ERRCODE = 'RL001';
    END IF;
    PERFORM {schema}.counter_shard_v1();
    PERFORM pg_advisory_xact_lock(1919317612, q.queue_id);
    SELECT * INTO q FROM {schema}.queue WHERE queue_id = q.queue_id FOR NO KEY UPDATE;
    RETURN q;
END $$;

-- Pause the queue, or a tenant, or a key of it (key with its tenant, if it has one): no more dispatches, unclaimed ones go back,
-- running runs go on. What went back makes room for others of the queue, who get it here. Answers first how many went back.
CREATE FUNCTION {schema}.pause_v1(p_queue text, p_tenant text, p_key text) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue := {schema}.enter_queue_alone_v1(p_queue); v_now timestamptz := clock_timestamp(); v_ids uuid[]; v_count int;
BEGIN
    IF p_tenant IS NULL AND p_key IS NULL THEN
        UPDATE {schema}.queue SET paused_at = coalesce(paused_at, v_now) WHERE queue_id = q.queue_id;
    ELSIF p_key IS NULL THEN
        INSERT INTO {schema}.tenant (queue_id, name) VALUES (q.queue_id, p_tenant) ON CONFLICT DO NOTHING;
        UPDATE {schema}.tenant SET paused_at = coalesce(paused_at, v_now) WHERE queue_id = q.queue_id AND name = p_tenant;
        UPDATE {schema}.partition SET tenant_paused_at = v_now WHERE queue_id = q.queue_id AND coalesce(tenant, '') = p_tenant;
    ELSE
        IF p_tenant IS NOT NULL THEN
            INSERT INTO {schema}.tenant (queue_id, name) VALUES (q.queue_id, p_tenant) ON CONFLICT DO NOTHING;
        END IF;
        INSERT INTO {schema}.partition (queue_id, tenant_id, tenant, concurrency_key, tenant_paused_at, weight)
        SELECT q.queue_id, t.tenant_id, p_tenant, p_key, t.paused_at,
               coalesce((SELECT k.weight FROM {schema}.tenant k WHERE p_tenant IS NULL AND k.queue_id = q.queue_id AND k.name = p_key), 1)
        FROM (SELECT 1) x LEFT JOIN {schema}.tenant t ON t.queue_id = q.queue_id AND t.name = p_tenant
        ON CONFLICT DO NOTHING;
        UPDATE {schema}.partition SET paused_at = coalesce(paused_at, v_now)
        WHERE queue_id = q.queue_id AND coalesce(tenant, '') = coalesce(p_tenant, '') AND coalesce(concurrency_key, '') = p_key;
    END IF;
    UPDATE {schema}.queue SET paused_parts =
        (SELECT count(*) FROM {schema}.tenant t WHERE t.queue_id = q.queue_id AND t.paused_at IS NOT NULL)
        + (SELECT count(*) FROM {schema}.partition p WHERE p.queue_id = q.queue_id AND p.paused_at IS NOT NULL)
    WHERE queue_id = q.queue_id;
    SELECT array_agg(d.run_id) INTO v_ids FROM {schema}.dispatch d
    CROSS JOIN LATERAL (SELECT x.tenant, x.concurrency_key FROM {schema}.run x WHERE x.run_id = d.run_id OFFSET 0) r
    WHERE d.queue_id = q.queue_id AND (p_tenant IS NULL OR r.tenant = p_tenant) AND (p_key IS NULL OR r.concurrency_key = p_key)
      AND (p_key IS NULL OR coalesce(r.tenant, '') = coalesce(p_tenant, ''));
    SELECT b.v_count INTO v_count FROM {schema}.give_back_v1(q, v_ids, false, v_now) b;
    PERFORM {schema}.refresh_states_v1(q.queue_id);
    RETURN NEXT ('given_back', v_count, NULL, NULL, q.name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
    SELECT * INTO q FROM {schema}.queue WHERE queue_id = q.queue_id;
    RETURN QUERY SELECT * FROM {schema}.dispatch_fairly_v1(q, {schema}.window_room_v1(q), v_now);
    RETURN QUERY SELECT * FROM {schema}.hint_ahead_v1(q, interval '15 minutes', 1000, v_now);
END $$;

-- Recompute the state of every partition that holds waiting runs; newly ready ones start at the virtual time of those waiting.
CREATE FUNCTION {schema}.refresh_states_v1(p_queue_id int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_floor bigint := {schema}.virtual_time_v1(p_queue_id); v_now timestamptz := clock_timestamp();
BEGIN
    -- Sorted, as in grant_slots_v1.
    WITH fresh AS MATERIALIZED (
        SELECT x.partition_id, x.becomes, x.until, CASE WHEN x.becomes <> 'r' THEN x.vt WHEN x.tenant_id IS NULL THEN greatest(x.vt, v_floor)
               ELSE greatest(x.vt, coalesce(
                   (SELECT o.vt FROM {schema}.partition o WHERE o.tenant_id = x.tenant_id AND o.state = 'r' ORDER BY o.vt LIMIT 1),
                   (SELECT t.floor FROM {schema}.tenant t WHERE t.tenant_id = x.tenant_id))) END AS vt
        FROM (SELECT y.*, CASE WHEN y.waiting = 0 THEN 'e' WHEN y.paused_at IS NOT NULL OR y.tenant_paused_at IS NOT NULL THEN 'p'
                               WHEN y.occupied >= y.concurrency_limit THEN 'b' WHEN y.until IS NOT NULL THEN 't' ELSE 'r' END::"char" AS becomes
              FROM (SELECT p.*, q.concurrency_limit, {schema}.throttled_until_v1(q, p.throttle_clock, p.reserved, v_now) AS until
                    FROM {schema}.partition p JOIN {schema}.queue q ON q.queue_id = p.queue_id WHERE p.queue_id = p_queue_id) y) x
        WHERE x.state <> x.becomes OR x.becomes = 't' AND x.until <> x.ready_at ORDER BY x.partition_id + 0)
    UPDATE {schema}.partition p SET state = f.becomes, vt = f.vt, ready_at = f.until, hinted_at = NULL FROM fresh f WHERE p.partition_id = ANY (ARRAY[f.partition_id]);
    UPDATE {schema}.tenant t SET ready = true, vt = greatest(t.vt, v_floor)
    WHERE t.queue_id = p_queue_id AND NOT t.ready
      AND EXISTS (SELECT 1 FROM {schema}.partition p WHERE p.tenant_id = t.tenant_id AND p.state = 'r' OFFSET 0);
END $$;

CREATE FUNCTION {schema}.resume_v1(p_queue text, p_tenant text, p_key text) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue := {schema}.enter_queue_alone_v1(p_queue); v_now timestamptz := clock_timestamp();
BEGIN
    IF p_tenant IS NULL AND p_key IS NULL THEN
        UPDATE {schema}.queue SET paused_at = NULL WHERE queue_id = q.queue_id;
    ELSIF p_key IS NULL THEN
        UPDATE {schema}.tenant SET paused_at = NULL WHERE queue_id = q.queue_id AND name = p_tenant;
        UPDATE {schema}.partition SET tenant_paused_at = NULL WHERE queue_id = q.queue_id AND coalesce(tenant, '') = p_tenant;
    ELSE
        UPDATE {schema}.partition SET paused_at = NULL
        WHERE queue_id = q.queue_id AND coalesce(tenant, '') = coalesce(p_tenant, '') AND coalesce(concurrency_key, '') = p_key;
    END IF;
    UPDATE {schema}.queue SET paused_parts =
        (SELECT count(*) FROM {schema}.tenant t WHERE t.queue_id = q.queue_id AND t.paused_at IS NOT NULL)
        + (SELECT count(*) FROM {schema}.partition p WHERE p.queue_id = q.queue_id AND p.paused_at IS NOT NULL)
    WHERE queue_id = q.queue_id RETURNING * INTO q;
    PERFORM {schema}.refresh_states_v1(q.queue_id);
    -- Hints that came meanwhile were refused.
    UPDATE {schema}.partition SET hinted_at = NULL WHERE queue_id = q.queue_id AND state = 't' AND hinted_at <= v_now + interval '1 second';
    RETURN QUERY SELECT * FROM {schema}.dispatch_fairly_v1(q, {schema}.window_room_v1(q), v_now);
    RETURN QUERY SELECT * FROM {schema}.hint_ahead_v1(q, interval '15 minutes', 1000, v_now);
END $$;

-- A tenant's share. A key without a tenant is its own tenant.
CREATE FUNCTION {schema}.set_weight_v1(p_queue text, p_tenant text, p_weight int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue;
BEGIN
    SELECT * INTO q FROM {schema}.queue WHERE name = p_queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue % is not in the database: run `runlane migrate`', quote_literal(p_queue) USING ERRCODE = 'RL001';
    END IF;
    UPDATE {schema}.partition SET weight = p_weight WHERE queue_id = q.queue_id AND tenant_id IS NULL AND concurrency_key = p_tenant;
    INSERT INTO {schema}.tenant (queue_id, name, weight) VALUES (q.queue_id, p_tenant, p_weight)
    ON CONFLICT (queue_id, name) DO UPDATE SET weight = excluded.weight;
END $$;

-- Put a policy in force. From unlimited to bounded, what is under way is counted first, while nobody else moves runs of the queue;
-- a raised limit gives its new capacity out in this transaction. A throttle that changes counts anew what is reserved.
CREATE FUNCTION {schema}.write_policy_v1(
    p_name text, p_concurrency_limit int, p_total_limit int, p_dispatch_timeout interval, p_dispatch_window int,
    p_throttle_limit int, p_throttle_period interval, p_throttle_burst int, p_policy json, p_actor text)
RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    q {schema}.queue; v_before json; v_now timestamptz := clock_timestamp(); v_runs {schema}.motion[]; v_was {schema}.queue;
    v_terms record; v_bounded boolean := p_concurrency_limit IS NOT NULL OR p_total_limit IS NOT NULL;
BEGIN
    SELECT * INTO v_terms FROM {schema}.throttle_terms_v1(p_throttle_limit, p_throttle_period, p_throttle_burst, p_total_limit);
    INSERT INTO {schema}.queue (name, concurrency_limit, total_limit, dispatch_timeout, dispatch_window, throttle_step, throttle_burst,
                            throttle_slack, throttle_ahead, policy)
    VALUES (p_name, p_concurrency_limit, p_total_limit, p_dispatch_timeout, p_dispatch_window, v_terms.step, v_terms.burst, v_terms.slack,
            v_terms.ahead, p_policy) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        INSERT INTO {schema}.queue_counter (queue_id, shard) SELECT queue_id, g FROM {schema}.queue, generate_series(0, 31) g WHERE name = p_name;
        INSERT INTO {schema}.policy_change SELECT queue_id, v_now, p_actor, NULL, p_policy FROM {schema}.queue WHERE name = p_name;
        RETURN NEXT ('changed', 0, NULL, 'created', p_name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
        RETURN;
    END IF;
    q := {schema}.enter_queue_alone_v1(p_name);
    IF q.policy::text = p_policy::text THEN
        RETURN;
    END IF;
    v_before := q.policy;
    v_was := q;
    UPDATE {schema}.queue SET concurrency_limit = p_concurrency_limit, total_limit = p_total_limit, dispatch_timeout = p_dispatch_timeout,
           dispatch_window = p_dispatch_window, throttle_step = v_terms.step, throttle_burst = v_terms.burst, throttle_slack = v_terms.slack,
           throttle_ahead = v_terms.ahead, policy = p_policy WHERE queue_id = q.queue_id RETURNING * INTO q;
    INSERT INTO {schema}.policy_change VALUES (q.queue_id, v_now, p_actor, v_before, p_policy);
    IF v_bounded OR q.throttle_step IS NOT NULL OR v_was.throttle_step IS NOT NULL THEN
        PERFORM 1 FROM {schema}.dispatch WHERE queue_id = q.queue_id ORDER BY run_id FOR UPDATE;
        PERFORM 1 FROM {schema}.lease WHERE queue_id = q.queue_id ORDER BY run_id FOR UPDATE;
        SELECT array_agg((x.run_id, NULL, v_now, 0, 'queued', 0, 0, 0, 0)::{schema}.motion) INTO v_runs
        FROM (SELECT run_id FROM {schema}.dispatch WHERE queue_id = q.queue_id AND partition_id IS NULL
              UNION ALL SELECT run_id FROM {schema}.lease WHERE queue_id = q.queue_id AND partition_id IS NULL) x;
        IF v_runs IS NOT NULL THEN
            v_runs := {schema}.resolve_partitions_v1(q.queue_id, v_runs);
            UPDATE {schema}.dispatch d SET partition_id = m.partition_id FROM unnest(v_runs) m WHERE d.run_id = ANY (ARRAY[m.run_id]);
            UPDATE {schema}.lease l SET partition_id = m.partition_id FROM unnest(v_runs) m WHERE l.run_id = ANY (ARRAY[m.run_id]);
        END IF;
    END IF;
    IF q.throttle_step IS NOT NULL
       AND (q.throttle_step, q.throttle_burst, q.throttle_slack) IS DISTINCT FROM (v_was.throttle_step, v_was.throttle_burst, v_was.throttle_slack) THEN
        PERFORM {schema}.begin_throttle_v1(q, v_now);
    ELSIF q.throttle_step IS NULL AND v_was.throttle_step IS NOT NULL THEN
        -- A start_at means a throttle (lease_dispatched_v1).
        UPDATE {schema}.dispatch SET start_at = NULL WHERE queue_id = q.queue_id AND start_at IS NOT NULL;
    END IF;
    IF v_bounded THEN
        UPDATE {schema}.partition p SET occupied = x.n
        FROM (SELECT c.partition_id, sum(c.slots)::int AS n
              FROM (SELECT partition_id, 0 AS slots FROM {schema}.partition WHERE queue_id = q.queue_id AND occupied <> 0
                    UNION ALL SELECT partition_id, 1 FROM {schema}.dispatch WHERE queue_id = q.queue_id
                    UNION ALL SELECT partition_id, 1 FROM {schema}.lease WHERE queue_id = q.queue_id) c GROUP BY 1) x
        WHERE p.partition_id = ANY (ARRAY[x.partition_id]) AND p.occupied <> x.n;
        UPDATE {schema}.queue SET occupied = (SELECT count(*) FROM {schema}.dispatch d WHERE d.queue_id = q.queue_id)
                                       + (SELECT count(*) FROM {schema}.lease l WHERE l.queue_id = q.queue_id)
        WHERE queue_id = q.queue_id AND total_limit IS NOT NULL RETURNING * INTO q;
        IF NOT FOUND THEN
            SELECT * INTO q FROM {schema}.queue WHERE name = p_name;
        END IF;
    END IF;
    PERFORM {schema}.refresh_states_v1(q.queue_id);
    RETURN NEXT ('changed', 0, NULL, 'updated', p_name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
    RETURN QUERY SELECT * FROM {schema}.dispatch_fairly_v1(q, {schema}.window_room_v1(q), v_now);
    RETURN QUERY SELECT * FROM {schema}.hint_ahead_v1(q, interval '15 minutes', 1000, v_now);
END $$;

-- What Postgres takes for JSON and Python does not read: numbers of more than 4,300 digits, and what nests too deep for it. Short text has
-- neither, so it is not looked through.
CREATE FUNCTION {schema}.json_fault_v1(p_value json) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE v_text text := p_value::text;
BEGIN
    IF length(v_text) <= 400 THEN
        RETURN NULL;
    END IF;
    v_text := regexp_replace(v_text, '"([^"\\]|\\.)*"', '""', 'g');
    IF length(v_text) > 4300 AND (SELECT max(length(x)) FROM regexp_split_to_table(v_text, '[^0-9]+') x) > 4300 THEN
        RETURN 'has a number of more than 4300 digits; give it as text';
    END IF;
    v_text := regexp_replace(v_text, '[^][{}]', '', 'g');
    IF length(v_text) > 400 AND (SELECT max(depth) FROM (
        SELECT sum(CASE WHEN x IN ('[', '{') THEN 1 ELSE -1 END) OVER (ORDER BY place) AS depth
        FROM regexp_split_to_table(v_text, '') WITH ORDINALITY AS y(x, place)) z) > 200 THEN
        RETURN 'nests deeper than 200; give it as text';
    END IF;
    RETURN NULL;
END $$;

-- What the Python door checks, for callers that come by SQL: the field and the remedy, or NULL.
CREATE FUNCTION {schema}.trigger_fault_v1(p_task text, p_payload json, p_queue text, p_options json) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_fault text; v_field text := 'options'; v_remedy text := 'contain text that Postgres cannot read; give valid Unicode'; v_option record;
    v_known text[] := ARRAY['tenant', 'concurrency_key', 'priority', 'delay', 'run_at', 'idempotency_key',
    'idempotency_ttl', 'singleton_key', 'singleton_mode', 'max_attempts', 'start_timeout', 'finish_timeout', 'actor', 'trace', 'meta'];
BEGIN
    IF p_task IS NULL OR p_task !~ '^[^:]{1,255}$' THEN
        RETURN 'task: give a name of 1 to 255 characters without ":"';
    ELSIF p_queue IS NULL THEN
        RETURN 'queue: name one';
    ELSIF p_payload IS NULL OR octet_length(p_payload::text) > 262144 THEN
        RETURN 'payload: give JSON of at most 256 KiB, and JSON null rather than NULL';
    ELSIF json_typeof(p_options) IS DISTINCT FROM 'object' THEN
        RETURN 'options: give a JSON object';
    ELSIF p_options::text ~ '(^|[^\\])(\\\\)*\\u0000' THEN
        -- No operator looks into JSON that has it.
        RETURN 'options: contain NUL, which Postgres cannot store; remove it';
    ELSIF {schema}.json_fault_v1(p_payload) IS NOT NULL THEN
        RETURN 'payload: ' || {schema}.json_fault_v1(p_payload);
    ELSIF p_options->>'delay' IS NOT NULL AND p_options->>'run_at' IS NOT NULL THEN
        RETURN 'delay, run_at: give one of them';
    END IF;
    FOR v_option IN SELECT key, value, value #>> '{}' AS text FROM json_each(p_options) WHERE json_typeof(value) <> 'null' LOOP
        v_field := v_option.key;
        IF v_option.key <> ALL (v_known) THEN
            RETURN format('options: %s is none; there are %s', left(v_option.key, 64), array_to_string(v_known, ', '));
        ELSIF v_option.key IN ('trace', 'meta') THEN
            IF json_typeof(v_option.value) <> 'object' THEN
                RETURN format('%s: give a JSON object', v_option.key);
            END IF;
            v_fault := {schema}.json_fault_v1(v_option.value);
            IF v_fault IS NOT NULL THEN
                RETURN format('%s: %s', v_option.key, v_fault);
            END IF;
        ELSIF v_option.key IN ('delay', 'idempotency_ttl', 'start_timeout', 'finish_timeout') THEN
            v_remedy := 'give 0 seconds to 100 years';
            IF v_option.text::interval < interval '0' OR v_option.text::interval > interval '100 years' THEN
                RETURN format('%s: %s', v_option.key, v_remedy);
            END IF;
        ELSIF v_option.key = 'run_at' THEN
            v_remedy := 'give a time in the years 2 to 9998';
            IF v_option.text::timestamptz NOT BETWEEN '0002-01-01Z' AND '9998-12-31Z' THEN
                RETURN format('run_at: %s', v_remedy);
            END IF;
        ELSIF v_option.key = 'singleton_mode' THEN
            IF v_option.text NOT IN ('return', 'cancel', 'latest') THEN
                RETURN 'singleton_mode: give return, cancel or latest';
            ELSIF p_options->>'singleton_key' IS NULL THEN
                RETURN 'singleton_mode: give a singleton_key with it';
            END IF;
        ELSIF v_option.key = 'priority' THEN
            v_remedy := 'give -600 to 600 seconds';
            IF v_option.text::int NOT BETWEEN -600 AND 600 THEN
                RETURN format('priority: %s', v_remedy);
            END IF;
        ELSIF v_option.key = 'max_attempts' THEN
            v_remedy := 'give 1 to 32767';
            IF v_option.text::int NOT BETWEEN 1 AND 32767 THEN
                RETURN format('max_attempts: %s', v_remedy);
            END IF;
        ELSIF length(v_option.text) NOT BETWEEN 1 AND 255 THEN
            RETURN format('%s: give 1 to 255 characters', v_option.key);
        END IF;
    END LOOP;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    -- What does not read as what its option is.
    RETURN format('%s: %s', v_field, v_remedy);
END $$;

-- A length of time in seconds: a day of Postgres is 23 or 25 hours where the session's time zone changes its clocks.
CREATE FUNCTION {schema}.in_seconds_v1(p_text text) RETURNS interval
LANGUAGE sql STABLE AS $$ SELECT make_interval(secs => extract(epoch FROM p_text::interval)::float8) $$;

-- The SQL door: record one run in the caller's transaction, for callers that are not Python. Options are keys of NewRun.
CREATE FUNCTION {schema}.trigger(task text, payload json, queue text, options json DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE v_id uuid; v_fault text := {schema}.trigger_fault_v1(task, payload, queue, options);
BEGIN
    IF v_fault IS NOT NULL THEN
        RAISE EXCEPTION '%', v_fault USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT e.run_id INTO v_id FROM {schema}.record_runs_v1(json_build_array(json_build_object(
        'ord', 1, 'task', task, 'queue', queue, 'payload', payload,
        'tenant', options->>'tenant', 'concurrency_key', options->>'concurrency_key', 'priority', options->>'priority',
        'delay', {schema}.in_seconds_v1(options->>'delay'), 'run_at', options->>'run_at', 'idempotency_key', options->>'idempotency_key',
        'idempotency_ttl', {schema}.in_seconds_v1(coalesce(options->>'idempotency_ttl', '30 days')), 'singleton_key', options->>'singleton_key',
        'singleton_mode', options->>'singleton_mode',
        'max_attempts', options->>'max_attempts', 'start_timeout', {schema}.in_seconds_v1(options->>'start_timeout'),
        'finish_timeout', {schema}.in_seconds_v1(options->>'finish_timeout'), 'actor', options->>'actor', 'trace', options->'trace', 'meta', options->'meta')),
        false, clock_timestamp()) e;
    RETURN v_id;
END $$;
