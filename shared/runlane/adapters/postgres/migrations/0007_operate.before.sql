-- Control by people: cancel, pause, resume, weights, policies.

-- Cancel one run. p_kind: 'cancel', or 'start' / 'finish' for a time-out. A waiting run ends at once; a leased one is asked to stop
-- (unless it is only the start time-out). Answers a 'cancelled' effect with the status after the request, and wakeups.
CREATE FUNCTION {schema}.cancel_run_v1(p_run_id uuid, p_actor text, p_reason text, p_kind text) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz; v_run record; q {schema}.queue; p {schema}.partition; m {schema}.motion; v_from text; v_status text; v_bounded boolean;
    v_shard int := floor(random() * 16);
BEGIN
    SELECT r.queue_id, r.tenant, r.concurrency_key, r.run_at, r.priority INTO v_run FROM {schema}.run r WHERE r.run_id = p_run_id;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    q := {schema}.enter_queue_v1(v_run.queue_id);
    v_bounded := q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL;
    SELECT * INTO p FROM {schema}.partition x
    WHERE x.queue_id = v_run.queue_id AND coalesce(x.tenant, '') = coalesce(v_run.tenant, '')
      AND coalesce(x.concurrency_key, '') = coalesce(v_run.concurrency_key, '') FOR NO KEY UPDATE;
    v_now := clock_timestamp();
    FOR i IN 1..50 LOOP
        SELECT o.status INTO v_status FROM {schema}.outcome o WHERE o.run_id = p_run_id;
        IF FOUND THEN
            RETURN NEXT ('cancelled', 0, p_run_id, v_status, q.name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
            RETURN;
        END IF;
        IF p_kind <> 'start' OR EXISTS (SELECT 1 FROM {schema}.waiting WHERE run_id = p_run_id AND attempt = 0)
           OR EXISTS (SELECT 1 FROM {schema}.dispatch WHERE run_id = p_run_id AND attempt = 0)
           OR EXISTS (SELECT 1 FROM {schema}.timer WHERE run_id = p_run_id AND attempt = 0)
           OR EXISTS (SELECT 1 FROM {schema}.inbox WHERE run_id = p_run_id) THEN
            DELETE FROM {schema}.waiting w WHERE w.run_id = p_run_id
            RETURNING w.run_id, w.partition_id, w.due_at, w.priority, w.status, w.attempt, w.failures, w.seq, w.expiries INTO m;
            IF FOUND THEN v_from := 'waiting'; EXIT; END IF;
            DELETE FROM {schema}.dispatch d WHERE d.run_id = p_run_id
            RETURNING d.run_id, d.partition_id, d.due_at, d.priority, d.status, d.attempt, d.failures, d.seq, d.expiries INTO m;
            IF FOUND THEN v_from := 'dispatch'; EXIT; END IF;
            DELETE FROM {schema}.timer t WHERE t.run_id = p_run_id
            RETURNING t.run_id, NULL::bigint, t.due_at, t.priority, t.status, t.attempt, t.failures, t.seq, 0 INTO m;
            IF FOUND THEN v_from := 'timer'; EXIT; END IF;
            DELETE FROM {schema}.inbox b WHERE b.run_id = p_run_id
            RETURNING b.run_id, NULL::bigint, v_run.run_at, v_run.priority, 'queued', 0, 0, 1, 0 INTO m;
            IF FOUND THEN v_from := 'inbox'; EXIT; END IF;
        END IF;
        IF p_kind = 'start' THEN
            RETURN;
        END IF;
        UPDATE {schema}.lease l SET cancel_requested_at = v_now, seq = l.seq + 1
        WHERE l.run_id = p_run_id AND l.cancel_requested_at IS NULL RETURNING l.run_id, l.partition_id, l.due_at, l.priority, l.status, l.attempt, l.failures, l.seq, 0 INTO m;
        IF FOUND THEN
            INSERT INTO {schema}.event (run_id, seq, type, at, attempt, actor, data)
            VALUES (p_run_id, m.seq, 'run.cancellation_requested', v_now, m.attempt, p_actor,
                    json_strip_nulls(json_build_object('reason', coalesce(p_reason, CASE WHEN p_kind <> 'cancel' THEN p_kind || '_timeout' END))));
        END IF;
        IF EXISTS (SELECT 1 FROM {schema}.lease l WHERE l.run_id = p_run_id) THEN
            RETURN NEXT ('cancelled', 0, p_run_id, 'cancellation_requested', q.name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
            RETURN;
        END IF;
    END LOOP;
    IF v_from IS NULL THEN
        RAISE EXCEPTION 'run % is in no state', p_run_id USING ERRCODE = 'RL002';
    END IF;
    v_bounded := v_bounded AND v_from = 'dispatch';
    INSERT INTO {schema}.outcome (run_id, status, attempt, failures, seq, ended_at, due_at)
    VALUES (p_run_id, 'cancelled', m.attempt, m.failures, m.seq + 1, v_now, m.due_at);
    INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied, queue_slot_seq, queue_occupied, actor, data)
    VALUES (p_run_id, m.seq + 1, 'run.cancelled', v_now, m.attempt, CASE WHEN v_bounded THEN p.partition_id END,
            CASE WHEN v_bounded THEN p.slot_seq + 1 END, CASE WHEN v_bounded THEN p.occupied - 1 END,
            CASE WHEN v_bounded AND q.total_limit IS NOT NULL THEN q.slot_seq + 1 END,
            CASE WHEN v_bounded AND q.total_limit IS NOT NULL THEN q.occupied - 1 END, p_actor,
            json_strip_nulls(json_build_object('reason', coalesce(p_reason, CASE WHEN p_kind <> 'cancel' THEN p_kind || '_timeout' END))));
    UPDATE {schema}.queue_counter SET
        waiting = waiting - CASE v_from WHEN 'waiting' THEN 1 ELSE 0 END,
        scheduled = scheduled - CASE v_from WHEN 'timer' THEN 1 ELSE 0 END,
        dispatched = dispatched - CASE v_from WHEN 'dispatch' THEN 1 ELSE 0 END
    WHERE queue_id = q.queue_id AND shard = v_shard;
    RETURN NEXT ('cancelled', 0, p_run_id, 'cancelled', q.name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
    IF v_from = 'waiting' THEN
        UPDATE {schema}.partition x SET waiting = x.waiting - 1, state = CASE WHEN x.waiting = 1 THEN 'e' ELSE x.state END
        WHERE x.partition_id = m.partition_id;
    ELSIF v_bounded THEN
        UPDATE {schema}.partition x SET occupied = x.occupied - 1, slot_seq = x.slot_seq + 1 WHERE x.partition_id = p.partition_id;
        IF q.total_limit IS NOT NULL THEN
            UPDATE {schema}.queue SET occupied = occupied - 1, slot_seq = slot_seq + 1 WHERE queue_id = q.queue_id RETURNING * INTO q;
        END IF;
        RETURN QUERY SELECT * FROM {schema}.grant_slots_v1(q, ARRAY[p.partition_id], v_now);
    END IF;
END $$;

CREATE FUNCTION {schema}.expire_deadlines_v1(p_limit int) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_deadline record;
BEGIN
    FOR v_deadline IN
        DELETE FROM {schema}.deadline d USING (
            SELECT at, run_id, kind FROM {schema}.deadline WHERE at <= clock_timestamp() ORDER BY at LIMIT p_limit FOR UPDATE SKIP LOCKED) x
        WHERE d.at = x.at AND d.run_id = x.run_id AND d.kind = x.kind RETURNING d.run_id, d.kind
    LOOP
        RETURN NEXT ('counted', 0, v_deadline.run_id, v_deadline.kind, NULL, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
        RETURN QUERY SELECT * FROM {schema}.cancel_run_v1(v_deadline.run_id, 'runlane', NULL, v_deadline.kind);
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
    PERFORM pg_advisory_xact_lock(1919317612, q.queue_id);
    SELECT * INTO q FROM {schema}.queue WHERE queue_id = q.queue_id FOR NO KEY UPDATE;
    RETURN q;
END $$;

-- Pause the queue, or a tenant, or a key of it (key with its tenant, if it has one): no more dispatches, unclaimed ones go back,
-- running runs go on. Answers how many went back.
CREATE FUNCTION {schema}.pause_v1(p_queue text, p_tenant text, p_key text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue := {schema}.enter_queue_alone_v1(p_queue); v_now timestamptz := clock_timestamp(); v_ids uuid[]; v_count int; v_tenant bigint;
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
        SELECT tenant_id INTO v_tenant FROM {schema}.tenant WHERE queue_id = q.queue_id AND name = p_tenant;
        INSERT INTO {schema}.partition (queue_id, tenant_id, tenant, concurrency_key) VALUES (q.queue_id, v_tenant, p_tenant, p_key)
        ON CONFLICT DO NOTHING;
        UPDATE {schema}.partition SET paused_at = coalesce(paused_at, v_now)
        WHERE queue_id = q.queue_id AND coalesce(tenant, '') = coalesce(p_tenant, '') AND coalesce(concurrency_key, '') = p_key;
    END IF;
    UPDATE {schema}.queue SET paused_parts =
        (SELECT count(*) FROM {schema}.tenant t WHERE t.queue_id = q.queue_id AND t.paused_at IS NOT NULL)
        + (SELECT count(*) FROM {schema}.partition p WHERE p.queue_id = q.queue_id AND p.paused_at IS NOT NULL)
    WHERE queue_id = q.queue_id;
    SELECT array_agg(d.run_id) INTO v_ids FROM {schema}.dispatch d JOIN {schema}.run r ON r.run_id = d.run_id
    WHERE d.queue_id = q.queue_id AND (p_tenant IS NULL OR r.tenant = p_tenant) AND (p_key IS NULL OR r.concurrency_key = p_key)
      AND (p_key IS NULL OR coalesce(r.tenant, '') = coalesce(p_tenant, ''));
    v_count := {schema}.give_back_v1(q, v_ids, false, v_now);
    PERFORM {schema}.refresh_states_v1(q.queue_id);
    RETURN v_count;
END $$;

-- Recompute the state of every partition that holds waiting runs; newly ready ones start at the virtual time of those waiting.
CREATE FUNCTION {schema}.refresh_states_v1(p_queue_id int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_floor bigint := {schema}.virtual_time_v1(p_queue_id);
BEGIN
    WITH fresh AS MATERIALIZED (
        SELECT p.partition_id, p.tenant_id, CASE WHEN p.waiting = 0 THEN 'e' WHEN p.paused_at IS NOT NULL OR p.tenant_paused_at IS NOT NULL THEN 'p'
               WHEN p.occupied >= q.concurrency_limit THEN 'b' ELSE 'r' END::"char" AS becomes
        FROM {schema}.partition p JOIN {schema}.queue q ON q.queue_id = p.queue_id WHERE p.queue_id = p_queue_id)
    UPDATE {schema}.partition p SET state = f.becomes, vt = CASE WHEN f.becomes = 'r' AND p.tenant_id IS NULL THEN greatest(p.vt, v_floor) ELSE p.vt END
    FROM fresh f WHERE p.partition_id = f.partition_id AND p.state <> f.becomes;
    UPDATE {schema}.tenant t SET ready = true, vt = greatest(t.vt, v_floor)
    WHERE t.queue_id = p_queue_id AND NOT t.ready AND EXISTS (SELECT 1 FROM {schema}.partition p WHERE p.tenant_id = t.tenant_id AND p.state = 'r');
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
    RETURN QUERY SELECT * FROM {schema}.dispatch_fairly_v1(q, {schema}.window_room_v1(q), v_now);
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
-- a raised limit gives its new capacity out in this transaction.
CREATE FUNCTION {schema}.write_policy_v1(
    p_name text, p_concurrency_limit int, p_total_limit int, p_dispatch_timeout interval, p_dispatch_window int, p_policy json, p_actor text)
RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue; v_before json; v_now timestamptz := clock_timestamp(); v_runs {schema}.motion[];
BEGIN
    INSERT INTO {schema}.queue (name, concurrency_limit, total_limit, dispatch_timeout, dispatch_window, policy)
    VALUES (p_name, p_concurrency_limit, p_total_limit, p_dispatch_timeout, p_dispatch_window, p_policy) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        INSERT INTO {schema}.queue_counter (queue_id, shard) SELECT queue_id, g FROM {schema}.queue, generate_series(0, 15) g WHERE name = p_name;
        INSERT INTO {schema}.policy_change SELECT queue_id, v_now, p_actor, NULL, p_policy FROM {schema}.queue WHERE name = p_name;
        RETURN NEXT ('changed', 0, NULL, 'created', p_name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
        RETURN;
    END IF;
    q := {schema}.enter_queue_alone_v1(p_name);
    IF q.policy::text = p_policy::text THEN
        RETURN;
    END IF;
    v_before := q.policy;
    UPDATE {schema}.queue SET concurrency_limit = p_concurrency_limit, total_limit = p_total_limit, dispatch_timeout = p_dispatch_timeout,
           dispatch_window = p_dispatch_window, policy = p_policy WHERE queue_id = q.queue_id RETURNING * INTO q;
    INSERT INTO {schema}.policy_change VALUES (q.queue_id, v_now, p_actor, v_before, p_policy);
    IF q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL THEN
        PERFORM 1 FROM {schema}.dispatch WHERE queue_id = q.queue_id ORDER BY run_id FOR UPDATE;
        PERFORM 1 FROM {schema}.lease WHERE queue_id = q.queue_id ORDER BY run_id FOR UPDATE;
        SELECT array_agg((x.run_id, NULL, v_now, 0, 'queued', 0, 0, 0, 0)::{schema}.motion) INTO v_runs
        FROM (SELECT run_id FROM {schema}.dispatch WHERE queue_id = q.queue_id AND partition_id IS NULL
              UNION ALL SELECT run_id FROM {schema}.lease WHERE queue_id = q.queue_id AND partition_id IS NULL) x;
        IF v_runs IS NOT NULL THEN
            v_runs := {schema}.resolve_partitions_v1(q.queue_id, v_runs);
            UPDATE {schema}.dispatch d SET partition_id = m.partition_id FROM unnest(v_runs) m WHERE d.run_id = m.run_id;
            UPDATE {schema}.lease l SET partition_id = m.partition_id FROM unnest(v_runs) m WHERE l.run_id = m.run_id;
        END IF;
        UPDATE {schema}.partition p SET occupied = x.n
        FROM (SELECT c.partition_id, (SELECT count(*) FROM {schema}.dispatch d WHERE d.queue_id = q.queue_id AND d.partition_id = c.partition_id)
                     + (SELECT count(*) FROM {schema}.lease l WHERE l.queue_id = q.queue_id AND l.partition_id = c.partition_id) AS n
              FROM (SELECT partition_id FROM {schema}.partition WHERE queue_id = q.queue_id AND occupied <> 0
                    UNION SELECT m.partition_id FROM unnest(v_runs) m) c) x
        WHERE p.partition_id = x.partition_id AND p.occupied <> x.n;
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
END $$;

-- The SQL door: record one run in the caller's transaction, for callers that are not Python. Options are keys of NewRun.
CREATE FUNCTION {schema}.trigger(task text, payload json, queue text, options json DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE v_id uuid;
BEGIN
    SELECT e.run_id INTO v_id FROM {schema}.record_runs_v1(json_build_array(json_build_object(
        'ord', 1, 'task', task, 'queue', queue, 'payload', payload,
        'tenant', options->>'tenant', 'concurrency_key', options->>'concurrency_key', 'priority', options->>'priority',
        'delay', options->>'delay', 'run_at', options->>'run_at', 'idempotency_key', options->>'idempotency_key',
        'idempotency_ttl', coalesce(options->>'idempotency_ttl', '30 days'), 'singleton_key', options->>'singleton_key',
        'max_attempts', options->>'max_attempts', 'actor', options->>'actor', 'trace', options->'trace', 'meta', options->'meta')),
        false, clock_timestamp()) e;
    RETURN v_id;
END $$;
