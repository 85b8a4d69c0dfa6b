-- What operators do besides 0007: run now, retry, rerun, cancel many, reschedule, prune.

-- Which failed run was retried, and as which: one child each, however many retry it at once.
CREATE TABLE {schema}.retried (
    run_id   uuid PRIMARY KEY,
    child_id uuid NOT NULL
);

-- Up to here slot events of a partition (and of its queue) may have been pruned; beyond it their history is whole.
CREATE TABLE {schema}.pruned_slots (
    partition_id   bigint PRIMARY KEY,
    slot_seq       bigint NOT NULL,
    queue_slot_seq bigint NOT NULL
);

-- Record one run and lease it, in one transaction. It has capacity if and only if a trigger in its place would have been dispatched in
-- this transaction, to start at once: so it takes the fair order's own way, and cannot pass by a run that waits for the same slot, for the window or for
-- total_limit. Else the transaction fails with RL003, whose message begins with the code, and nothing is created.
-- Answers a 'run' row (verdict: the trigger's outcome; payload: the owner's status, of a duplicate), the claim, and wakeups.
CREATE FUNCTION {schema}.run_now_v1(p_runs json, p_lease interval, p_worker text) RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
DECLARE v_effects {schema}.effect[]; v_run {schema}.effect; v_queue int; v_claim {schema}.claim; v_claims {schema}.claim[];
BEGIN
    SELECT array_agg(e) INTO v_effects FROM {schema}.trigger_runs_v1(p_runs, true) e;
    SELECT (e).* INTO v_run FROM unnest(v_effects) e WHERE e.kind = 'run';
    v_claim := {schema}.effect_as_claim_v1(v_run);
    v_claim.payload := v_run.detail;
    RETURN NEXT v_claim;
    IF v_run.verdict = 'created' THEN
        SELECT d.queue_id INTO v_queue FROM {schema}.dispatch d WHERE d.run_id = v_run.run_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION '%', {schema}.no_capacity_v1(v_run.run_id) USING ERRCODE = 'RL003';
        END IF;
        SELECT array_agg(c) INTO v_claims
        FROM {schema}.lease_and_refill_v1(ARRAY[v_run.run_id], ARRAY[v_queue], p_lease, p_worker, clock_timestamp(), false, true) c;
        IF NOT EXISTS (SELECT 1 FROM unnest(v_claims) c WHERE c.kind = 'claim') THEN
            RAISE EXCEPTION '%', {schema}.no_token_v1(v_queue) USING ERRCODE = 'RL003';
        END IF;
        RETURN QUERY SELECT * FROM unnest(v_claims);
    END IF;
    RETURN QUERY SELECT c.* FROM unnest(v_effects) e CROSS JOIN LATERAL {schema}.effect_as_claim_v1(e) c
                 WHERE e.kind IN ('wakeup', 'hint', 'starved') AND e.run_id IS DISTINCT FROM v_run.run_id;
END $$;

CREATE FUNCTION {schema}.no_token_v1(p_queue_id int) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT format('throttled: queue %L starts no more runs of this key now', name) FROM {schema}.queue WHERE queue_id = p_queue_id
$$;

-- Why a run that waits was not dispatched: a code and a sentence. One that waits for no slot is held behind the active run of its key.
CREATE FUNCTION {schema}.no_capacity_v1(p_run_id uuid) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT coalesce((
    SELECT CASE WHEN q.paused_at IS NOT NULL OR p.paused_at IS NOT NULL OR p.tenant_paused_at IS NOT NULL
                THEN format('paused: queue %L, or this tenant or key of it, is paused', q.name)
                WHEN p.state = 't' THEN {schema}.no_token_v1(q.queue_id)
                ELSE format('queue_at_capacity: queue %L has no free slot for this run now', q.name) END
    FROM {schema}.waiting w JOIN {schema}.partition p ON p.partition_id = w.partition_id JOIN {schema}.queue q ON q.queue_id = w.queue_id
    WHERE w.run_id = p_run_id), 'singleton_active: another run with this singleton key is active, and would have to end first')
$$;

-- What a retry or a rerun is made of.
CREATE FUNCTION {schema}.read_origins_v1(p_ids uuid[]) RETURNS TABLE (
    run_id text, task text, queue text, status text, payload json, tenant text, concurrency_key text, priority int, singleton_key text,
    meta json, child_id text)
LANGUAGE sql STABLE AS $$
    SELECT r.run_id::text, r.task, (SELECT q.name FROM {schema}.queue q WHERE q.queue_id = r.queue_id), {schema}.run_status_v1(r.run_id), r.payload, r.tenant, r.concurrency_key, r.priority, r.singleton_key,
           r.meta, (SELECT c.child_id::text FROM {schema}.retried c WHERE c.run_id = r.run_id)
    FROM {schema}.run r WHERE r.run_id = ANY (p_ids)
$$;

-- Whether a child of this run may be made: NULL, or the code of the refusal. It stays in the database until the child is there, and a
-- retry is noted, so that of two at once one finds it noted. Keyed to the run's end, which others only add to: they do not wait.
CREATE FUNCTION {schema}.take_origin_v1(p_run_id uuid, p_retry boolean) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE v_status text;
BEGIN
    SELECT o.status INTO v_status FROM {schema}.outcome o WHERE o.run_id = p_run_id FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT 1 FROM {schema}.run r WHERE r.run_id = p_run_id) THEN 'run_not_ended' ELSE 'run_not_found' END;
    ELSIF NOT p_retry THEN
        RETURN NULL;
    ELSIF v_status <> 'failed' THEN
        RETURN 'run_not_failed';
    END IF;
    INSERT INTO {schema}.retried (run_id, child_id) VALUES (p_run_id, p_run_id) ON CONFLICT DO NOTHING;
    RETURN CASE WHEN NOT FOUND THEN 'already_retried' END;
END $$;

-- Retry failed runs, or rerun ended ones: p_runs are as for trigger_runs, each with its source_run_id. Locks: ends and notes of the
-- origins by id, then as a trigger. Answers 'refused' effects (run_id the origin, verdict the code) and those of the trigger.
CREATE FUNCTION {schema}.rerun_runs_v1(p_runs json, p_retry boolean) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    v_item record; v_code text; v_places int[] := '{}'; v_origins uuid[]; v_runs json; v_effects {schema}.effect[];
BEGIN
    FOR v_item IN SELECT i.ord, i.source_run_id FROM json_to_recordset(p_runs) AS i(ord int, source_run_id uuid) ORDER BY i.source_run_id LOOP
        v_code := {schema}.take_origin_v1(v_item.source_run_id, p_retry);
        IF v_code IS NULL THEN
            v_places := v_places || v_item.ord;
        ELSE
            RETURN QUERY SELECT 'refused', v_item.ord, v_item.source_run_id, v_code, NULL::text, NULL::text, NULL::text, NULL::timestamptz,
                NULL::interval, json_build_object('child', (SELECT c.child_id FROM {schema}.retried c WHERE c.run_id = v_item.source_run_id));
        END IF;
    END LOOP;
    IF cardinality(v_places) = 0 THEN
        RETURN;
    END IF;
    SELECT array_agg(x.place ORDER BY x.ord), array_agg(x.source_run_id ORDER BY x.ord), json_agg(row_to_json(x) ORDER BY x.ord)
    INTO v_places, v_origins, v_runs
    FROM (SELECT row_number() OVER (ORDER BY i.ord) AS ord, i.ord AS place, i.task, i.queue, i.payload, i.tenant, i.concurrency_key, i.priority,
                 i.singleton_key, i.max_attempts, i.start_timeout, i.finish_timeout, i.actor, i.meta, i.source, i.source_run_id, i.reason
          FROM json_to_recordset(p_runs) AS i(
              ord int, task text, queue text, payload json, tenant text, concurrency_key text, priority int, singleton_key text,
              max_attempts int, start_timeout text, finish_timeout text, actor text, meta json, source text, source_run_id uuid, reason text)
          WHERE i.ord = ANY (v_places)) x;
    SELECT array_agg(e) INTO v_effects FROM {schema}.trigger_runs_v1(v_runs, true) e;
    IF p_retry THEN
        FOR v_item IN SELECT v_origins[e.ord] AS origin, e.run_id, e.verdict FROM unnest(v_effects) e WHERE e.kind = 'run' LOOP
            IF v_item.verdict = 'created' THEN
                UPDATE {schema}.retried c SET child_id = v_item.run_id WHERE c.run_id = v_item.origin;
            ELSE
                -- A singleton that is active is no child of this one.
                DELETE FROM {schema}.retried c WHERE c.run_id = v_item.origin;
            END IF;
        END LOOP;
    END IF;
    RETURN QUERY
    SELECT e.kind, CASE e.kind WHEN 'run' THEN v_places[e.ord] ELSE e.ord END, e.run_id, e.verdict, e.queue, e.tenant, e.concurrency_key, e.due_at,
           e.due_in, e.detail
    FROM unnest(v_effects) e;
END $$;

-- Cancel a group of runs, queue by queue. Those that have ended are answered by nothing.
CREATE FUNCTION {schema}.cancel_runs_v1(p_ids uuid[], p_actor text, p_reason text) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_lot record;
BEGIN
    PERFORM {schema}.lock_singletons_v1(p_ids);
    FOR v_lot IN
        SELECT r.queue_id, array_agg(r.run_id ORDER BY r.run_id) AS ids FROM {schema}.run r
        WHERE r.run_id = ANY (p_ids) AND NOT EXISTS (SELECT 1 FROM {schema}.outcome o WHERE o.run_id = r.run_id OFFSET 0) GROUP BY 1 ORDER BY 1
    LOOP
        RETURN QUERY SELECT * FROM {schema}.stop_runs_v1(
            v_lot.queue_id, v_lot.ids, array_fill('cancel'::text, ARRAY[cardinality(v_lot.ids)]), p_actor, p_reason);
    END LOOP;
END $$;

-- Take a run that waits out of where it is, its partition locked by the caller. What is due already stays, unless it is to go later.
-- origin: where it was taken from; NULL: it stays, and verdict is its status.
CREATE FUNCTION {schema}.take_waiting_v1(p_run_id uuid, p_later boolean, OUT run {schema}.motion, OUT origin text, OUT verdict text)
LANGUAGE plpgsql AS $$
DECLARE v_found record;
BEGIN
    FOR i IN 1..50 LOOP
        IF p_later THEN
            DELETE FROM {schema}.waiting w WHERE w.run_id = p_run_id
            RETURNING w.run_id, w.partition_id, w.due_at, w.priority, w.status, w.attempt, w.failures, w.seq, w.expiries INTO run;
            IF FOUND THEN
                origin := 'waiting';
                RETURN;
            END IF;
            DELETE FROM {schema}.dispatch d WHERE d.run_id = p_run_id
            RETURNING d.run_id, d.partition_id, d.due_at, d.priority, d.status, d.attempt, d.failures, d.seq, d.expiries INTO run;
            IF FOUND THEN
                origin := 'dispatch';
                RETURN;
            END IF;
        END IF;
        SELECT * INTO v_found FROM {schema}.take_sleeping_v1(p_run_id, false, false);
        IF v_found.origin IS NOT NULL THEN
            run := v_found.run;
            origin := v_found.origin;
            RETURN;
        END IF;
        verdict := {schema}.run_status_v1(p_run_id);
        IF verdict IN ('running', 'cancellation_requested', 'succeeded', 'failed', 'cancelled')
           OR NOT p_later AND verdict IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {schema}.timer t WHERE t.run_id = p_run_id) THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'run % is moving', p_run_id USING ERRCODE = 'RL002';
END $$;

-- Count a run out of where it was taken from, and write its move with the slot that it gives back.
CREATE FUNCTION {schema}.leave_place_v1(q {schema}.queue, m {schema}.motion, p_origin text, p_due_at timestamptz, p_actor text, p_now timestamptz)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_slot boolean := p_origin = 'dispatch' AND (q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL);
    v_queue_slot boolean := v_slot AND q.total_limit IS NOT NULL; p {schema}.partition; v_shard int := {schema}.counter_shard_v1();
BEGIN
    IF v_slot THEN
        UPDATE {schema}.partition x SET occupied = x.occupied - 1, slot_seq = x.slot_seq + 1 WHERE x.partition_id = m.partition_id RETURNING * INTO p;
        IF v_queue_slot THEN
            UPDATE {schema}.queue SET occupied = occupied - 1, slot_seq = slot_seq + 1 WHERE queue_id = q.queue_id RETURNING * INTO q;
        END IF;
    ELSIF p_origin = 'waiting' THEN
        UPDATE {schema}.partition x SET waiting = x.waiting - 1, state = CASE WHEN x.waiting = 1 THEN 'e' ELSE x.state END, hinted_at = NULL
        WHERE x.partition_id = m.partition_id;
    END IF;
    IF p_origin = 'dispatch' AND q.throttle_step IS NOT NULL THEN
        UPDATE {schema}.partition x SET reserved = x.reserved - 1 WHERE x.partition_id = m.partition_id;
    END IF;
    INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied, queue_slot_seq, queue_occupied, actor, data)
    VALUES (m.run_id, m.seq + 1, 'run.rescheduled', p_now, m.attempt, p.partition_id, p.slot_seq, p.occupied,
            CASE WHEN v_queue_slot THEN q.slot_seq END, CASE WHEN v_queue_slot THEN q.occupied END, p_actor,
            json_build_object('due_at', p_due_at, 'was_due_at', m.due_at));
    PERFORM {schema}.count_v1(q.queue_id, v_shard, CASE p_origin WHEN 'waiting' THEN -1 ELSE 0 END,
        CASE p_origin WHEN 'timer' THEN -1 ELSE 0 END, CASE p_origin WHEN 'dispatch' THEN -1 ELSE 0 END, 0);
END $$;

-- Move a run that waits to another due time: to the future, giving back what it holds, or to now, where it is dispatched if there is
-- capacity. A successor keeps its place. Locks: its time-outs, then as a cancellation. Answers a 'rescheduled' effect, or a 'refused' one with its status; none: no run.
CREATE FUNCTION {schema}.reschedule_run_v1(p_run_id uuid, p_run_at timestamptz, p_actor text) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    r record; q {schema}.queue; v_found record; m {schema}.motion; v_now timestamptz; v_later boolean; v_due timestamptz;
    v_shard int;
BEGIN
    SELECT x.queue_id, x.tenant, x.concurrency_key, x.start_timeout, x.finish_timeout INTO r FROM {schema}.run x WHERE x.run_id = p_run_id;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM 1 FROM {schema}.deadline d WHERE d.run_id = p_run_id ORDER BY d.at, d.kind FOR UPDATE;
    PERFORM {schema}.lock_singletons_v1(ARRAY[p_run_id]);
    v_shard := {schema}.counter_shard_v1();
    q := {schema}.enter_queue_v1(r.queue_id);
    -- A successor stays where it is.
    SELECT (s.run_id, NULL, s.due_at, s.priority, s.status, 0, 0, s.seq, 0)::{schema}.motion AS run, 'successor' AS origin, NULL::text AS verdict
    INTO v_found FROM {schema}.successor s WHERE s.run_id = p_run_id FOR UPDATE;
    IF NOT FOUND THEN
        SELECT t.run, t.origin, NULL::text AS verdict INTO v_found FROM {schema}.take_sleeping_v1(p_run_id, false, true) t;
    END IF;
    v_now := clock_timestamp();
    IF v_found.origin IS NULL THEN
        PERFORM {schema}.lock_partitions_v1(ARRAY(
            SELECT p.partition_id FROM {schema}.partition p WHERE p.queue_id = r.queue_id AND coalesce(p.tenant, '') = coalesce(r.tenant, '')
            AND coalesce(p.concurrency_key, '') = coalesce(r.concurrency_key, '')));
        v_now := clock_timestamp();
        SELECT * INTO v_found FROM {schema}.take_waiting_v1(p_run_id, p_run_at > v_now);
    END IF;
    v_later := p_run_at > v_now;
    v_due := CASE WHEN v_later THEN p_run_at ELSE v_now END;
    IF v_found.origin IS NULL THEN
        RETURN NEXT (CASE WHEN v_found.verdict IN ('queued', 'retrying', 'released') THEN 'rescheduled' ELSE 'refused' END, 0, p_run_id,
                     v_found.verdict, q.name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
        RETURN;
    END IF;
    m := v_found.run;
    PERFORM {schema}.leave_place_v1(q, m, v_found.origin, v_due, p_actor, v_now);
    IF m.attempt = 0 THEN
        -- Time-outs count from the due time until the first attempt.
        DELETE FROM {schema}.deadline d WHERE d.run_id = p_run_id;
        INSERT INTO {schema}.deadline (at, run_id, kind)
        SELECT v_due + x.after, p_run_id, x.kind FROM (VALUES (r.start_timeout, 'start'), (r.finish_timeout, 'finish')) x(after, kind)
        WHERE x.after IS NOT NULL;
    END IF;
    RETURN NEXT ('rescheduled', 0, p_run_id, CASE WHEN m.status = 'queued' AND v_later THEN 'scheduled' ELSE m.status END, q.name, r.tenant,
                 r.concurrency_key, v_due, v_due - v_now, NULL)::{schema}.effect;
    IF v_found.origin = 'successor' THEN
        UPDATE {schema}.successor SET due_at = v_due, seq = m.seq + 1 WHERE run_id = p_run_id;
        RETURN;
    END IF;
    IF v_later THEN
        INSERT INTO {schema}.timer (run_id, queue_id, due_at, priority, status, attempt, failures, seq, hinted_at)
        VALUES (p_run_id, q.queue_id, v_due, m.priority, m.status, m.attempt, m.failures, m.seq + 1,
                CASE WHEN v_due <= v_now + interval '15 minutes' THEN v_now END);
        PERFORM {schema}.count_v1(q.queue_id, v_shard, 0, 1, 0, 0);
        IF v_due <= v_now + interval '15 minutes' THEN
            RETURN NEXT ('hint', 0, p_run_id, NULL, q.name, r.tenant, r.concurrency_key, v_due, v_due - v_now, NULL)::{schema}.effect;
        END IF;
        IF v_found.origin = 'dispatch' THEN
            q := {schema}.enter_queue_v1(q.queue_id);
            RETURN QUERY SELECT * FROM {schema}.grant_slots_v1(q, ARRAY[m.partition_id], v_now);
        ELSIF q.throttle_step > q.throttle_ahead / 2 THEN
            RETURN QUERY SELECT * FROM {schema}.hint_throttled_v1(q, ARRAY[m.partition_id], v_now);
        END IF;
        RETURN;
    END IF;
    m.due_at := v_due;
    m.seq := m.seq + 1;
    RETURN QUERY SELECT * FROM {schema}.ready_runs_v1(q, {schema}.resolve_partitions_v1(q.queue_id, ARRAY[m]), v_now);
END $$;

-- Ended runs that may be pruned by their age, oldest first: of a task or a queue from its own index, of all from their ends. Conditions on
-- the other table are scalar, so that no statistics turn the walk round.
CREATE FUNCTION {schema}.list_prunable_v1(p_ended_before timestamptz, p_statuses text[], p_task text, p_queue text, p_after uuid, p_limit int)
RETURNS SETOF uuid
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_queue int; v_sources text[]; v_low uuid := coalesce(p_after, '00000000-0000-0000-0000-000000000000');
    v_high uuid := {schema}.run_id_floor_v1(p_ended_before);
BEGIN
    IF p_queue IS NOT NULL THEN
        SELECT queue_id INTO v_queue FROM {schema}.queue WHERE name = p_queue;
    END IF;
    IF p_task IS NOT NULL OR p_queue IS NOT NULL THEN
        v_sources := ARRAY['{schema}.run x WHERE (SELECT o.status = ANY ($1) AND o.ended_at < $4 FROM {schema}.outcome o WHERE o.run_id = x.run_id)'
            || CASE WHEN p_task IS NOT NULL THEN ' AND x.task = $7' ELSE '' END || CASE WHEN p_queue IS NOT NULL THEN ' AND x.queue_id = $6' ELSE '' END];
    ELSIF 'succeeded' = ANY (p_statuses) THEN
        -- Successes are in no index by status: they are the rule, and their ids are walked.
        v_sources := ARRAY['{schema}.outcome x WHERE x.status = ANY ($1) AND x.ended_at < $4'];
    ELSE
        v_sources := ARRAY(SELECT format('{schema}.outcome x WHERE x.status = %L AND x.ended_at < $4', s) FROM unnest(p_statuses) s);
    END IF;
    RETURN QUERY EXECUTE 'SELECT run_id FROM (' || (
        SELECT string_agg('(SELECT x.run_id FROM ' || s || ' AND x.run_id > $2 AND x.run_id < $3 ORDER BY x.run_id LIMIT $5)', ' UNION ALL ')
        FROM unnest(v_sources) s) || ') y ORDER BY run_id LIMIT $5'
        USING p_statuses, v_low, v_high, p_ended_before, p_limit, v_queue, p_task;
END $$;

-- Free the keys that an ended run still owns; false: it must stay, as an idempotency key's time is not up, or somebody looks at a key
-- just now: it waits for nobody. A key that goes although its run stays after all was free already.
CREATE FUNCTION {schema}.free_keys_v1(
    p_run_id uuid, p_status text, p_task text, p_idempotency_key text, p_singleton_key text, p_dry boolean, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE v_expires_at timestamptz;
BEGIN
    SELECT k.expires_at INTO v_expires_at FROM {schema}.idempotency_key k
    WHERE k.task = p_task AND k.key = p_idempotency_key AND k.run_id = p_run_id;
    IF FOUND AND p_status <> 'failed' AND v_expires_at > p_now THEN
        RETURN false;
    ELSIF FOUND AND NOT p_dry THEN
        DELETE FROM {schema}.idempotency_key WHERE ctid = (
            SELECT k.ctid FROM {schema}.idempotency_key k
            WHERE k.task = p_task AND k.key = p_idempotency_key AND k.run_id = p_run_id FOR UPDATE SKIP LOCKED);
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    PERFORM 1 FROM {schema}.singleton_key k WHERE k.task = p_task AND k.key = p_singleton_key AND k.run_id = p_run_id;
    IF FOUND AND NOT p_dry THEN
        DELETE FROM {schema}.singleton_key WHERE ctid = (
            SELECT k.ctid FROM {schema}.singleton_key k
            WHERE k.task = p_task AND k.key = p_singleton_key AND k.run_id = p_run_id FOR UPDATE SKIP LOCKED);
        RETURN FOUND;
    END IF;
    RETURN true;
END $$;

-- Delete ended runs with their ends, histories and keys; how many went. p_ids is sorted. Those stay that keep an idempotency key or
-- that somebody else is using: it never waits for a run's lock. Dry: only counts.
CREATE FUNCTION {schema}.delete_runs_v1(p_ids uuid[], p_dry boolean, p_now timestamptz) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE v_ids uuid[]; v_low uuid; v_high uuid; v_count int;
BEGIN
    v_ids := ARRAY(
        SELECT r.run_id FROM {schema}.run r WHERE r.run_id = ANY (p_ids) AND CASE WHEN r.idempotency_key IS NULL AND r.singleton_key IS NULL
            THEN true ELSE {schema}.free_keys_v1(
                r.run_id, (SELECT o.status FROM {schema}.outcome o WHERE o.run_id = r.run_id), r.task, r.idempotency_key, r.singleton_key,
                p_dry, p_now) END);
    IF NOT p_dry THEN
        -- A late refusal adds to the end and the history of a run: its transaction is over, or the run stays.
        v_ids := ARRAY(SELECT o.run_id FROM {schema}.outcome o WHERE o.run_id = ANY (v_ids) ORDER BY o.run_id FOR UPDATE SKIP LOCKED);
    END IF;
    v_count := cardinality(v_ids);
    IF p_dry OR v_count = 0 THEN
        RETURN v_count;
    END IF;
    v_low := v_ids[1];
    v_high := v_ids[v_count];
    INSERT INTO {schema}.pruned_slots AS f (partition_id, slot_seq, queue_slot_seq)
    SELECT e.partition_id, max(e.slot_seq), coalesce(max(e.queue_slot_seq), 0) FROM {schema}.event e
    WHERE e.run_id = ANY (v_ids) AND e.run_id >= v_low AND e.run_id <= v_high AND e.slot_seq IS NOT NULL GROUP BY 1 ORDER BY 1
    ON CONFLICT (partition_id) DO UPDATE
    SET slot_seq = greatest(f.slot_seq, excluded.slot_seq), queue_slot_seq = greatest(f.queue_slot_seq, excluded.queue_slot_seq);
    DELETE FROM {schema}.retried WHERE run_id = ANY (v_ids);
    DELETE FROM {schema}.event WHERE run_id = ANY (v_ids) AND run_id >= v_low AND run_id <= v_high;
    DELETE FROM {schema}.outcome WHERE run_id = ANY (v_ids) AND run_id >= v_low AND run_id <= v_high;
    DELETE FROM {schema}.run WHERE run_id = ANY (v_ids) AND run_id >= v_low AND run_id <= v_high;
    RETURN v_count;
END $$;

-- Delete up to p_limit ended runs, going on after p_after. matched: how many were looked at; fewer than p_limit: there are no more.
-- last_id: where to go on. Dry: only counts.
CREATE FUNCTION {schema}.prune_runs_v1(
    p_older_than interval, p_statuses text[], p_task text, p_queue text, p_after uuid, p_limit int, p_dry boolean,
    OUT matched int, OUT pruned int, OUT last_id uuid)
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp(); v_ids uuid[];
BEGIN
    v_ids := ARRAY(SELECT i FROM {schema}.list_prunable_v1(v_now - p_older_than, p_statuses, p_task, p_queue, p_after, p_limit) i);
    matched := cardinality(v_ids);
    last_id := v_ids[matched];
    pruned := {schema}.delete_runs_v1(v_ids, p_dry, v_now);
END $$;

SELECT {schema}.pin_plans_v1(ARRAY[
        'run_now_v1(json, interval, text)', 'read_origins_v1(uuid[])', 'rerun_runs_v1(json, boolean)', 'cancel_runs_v1(uuid[], text, text)',
        'reschedule_run_v1(uuid, timestamptz, text)', 'prune_runs_v1(interval, text[], text, text, uuid, int, boolean)']);
