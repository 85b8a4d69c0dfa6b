-- Recording runs and sending them on their way. p_runs is a JSON array of objects with ord from 1; see NewRun in ports/stores.py.

-- Who owns an idempotency key: the owner's id if it is active or retained, else no row and the key is free. Takes no lock. A set, since
-- only that is planned with its caller's statement, instead of at every call.
CREATE FUNCTION {schema}.idempotency_owner_v1(p_task text, p_key text, p_now timestamptz) RETURNS TABLE (run_id uuid, payload_hash text)
LANGUAGE sql STABLE AS $$
    SELECT k.run_id, k.payload_hash FROM {schema}.idempotency_key k
    LEFT JOIN LATERAL (SELECT x.status FROM {schema}.outcome x WHERE x.run_id = k.run_id OFFSET 0) o ON true
    WHERE k.task = p_task AND k.key = p_key
      AND (o.status IS NULL OR (o.status <> 'failed' AND k.expires_at > p_now))
$$;

-- Own the key for the new run, or name who owns it. Waits for another transaction that is taking the same key.
CREATE FUNCTION {schema}.take_idempotency_key_v1(
    p_task text, p_key text, p_run_id uuid, p_expires_at timestamptz, p_hash text, p_now timestamptz, OUT run_id uuid, OUT payload_hash text)
LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        SELECT o.run_id, o.payload_hash INTO run_id, payload_hash FROM {schema}.idempotency_owner_v1(p_task, p_key, p_now) o;
        EXIT WHEN run_id IS NOT NULL;
        INSERT INTO {schema}.idempotency_key AS k (task, key, run_id, expires_at, payload_hash)
        VALUES (p_task, p_key, p_run_id, p_expires_at, p_hash) ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
        PERFORM 1 FROM {schema}.idempotency_key k WHERE k.task = p_task AND k.key = p_key FOR UPDATE;
        SELECT o.run_id, o.payload_hash INTO run_id, payload_hash FROM {schema}.idempotency_owner_v1(p_task, p_key, p_now) o;
        EXIT WHEN run_id IS NOT NULL;
        UPDATE {schema}.idempotency_key k SET run_id = p_run_id, expires_at = p_expires_at, payload_hash = p_hash
        WHERE k.task = p_task AND k.key = p_key;
        EXIT WHEN FOUND;
    END LOOP;
END $$;

-- Own the key for the new run, or name the active run that does. Waits for another transaction that is taking the same key.
CREATE FUNCTION {schema}.take_singleton_key_v1(p_task text, p_key text, p_run_id uuid) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE v_owner uuid;
BEGIN
    LOOP
        SELECT k.run_id INTO v_owner FROM {schema}.singleton_key k
        WHERE k.task = p_task AND k.key = p_key AND NOT EXISTS (SELECT 1 FROM {schema}.outcome o WHERE o.run_id = k.run_id OFFSET 0);
        IF FOUND THEN
            RETURN v_owner;
        END IF;
        INSERT INTO {schema}.singleton_key (task, key, run_id) VALUES (p_task, p_key, p_run_id) ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
        -- Not locked first: this transaction may be a caller's own, and must not keep an active run from ending.
        UPDATE {schema}.singleton_key k SET run_id = p_run_id
        WHERE k.task = p_task AND k.key = p_key AND EXISTS (SELECT 1 FROM {schema}.outcome o WHERE o.run_id = k.run_id OFFSET 0);
        EXIT WHEN FOUND;
    END LOOP;
    RETURN NULL;
END $$;

-- The status of a run, from where it stands.
CREATE FUNCTION {schema}.run_status_v1(p_run_id uuid) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT status FROM {schema}.outcome WHERE run_id = p_run_id),
        (SELECT CASE WHEN cancel_requested_at IS NULL THEN 'running' ELSE 'cancellation_requested' END FROM {schema}.lease WHERE run_id = p_run_id),
        (SELECT status FROM {schema}.dispatch WHERE run_id = p_run_id),
        (SELECT status FROM {schema}.waiting WHERE run_id = p_run_id),
        (SELECT CASE WHEN status = 'queued' AND due_at > clock_timestamp() THEN 'scheduled' ELSE status END FROM {schema}.timer WHERE run_id = p_run_id),
        (SELECT CASE WHEN due_at > clock_timestamp() THEN 'scheduled' ELSE 'queued' END FROM {schema}.successor WHERE run_id = p_run_id),
        (SELECT 'queued' FROM {schema}.inbox WHERE run_id = p_run_id))
$$;

-- Record runs. Due ones of an eager trigger are placed by the caller; the others wait in inbox, timer or successor. Locks: keys in
-- order. Answers one 'run' effect per item, in order; verdict is the trigger's outcome, detail is NULL for a new run that is on its
-- way; and a 'stop' effect for each active run that a new one replaces, to be stopped by the caller.
CREATE FUNCTION {schema}.record_runs_v1(p_runs json, p_eager boolean, p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    v_count int := json_array_length(p_runs); v_ids uuid[]; v_verdicts text[]; v_matches boolean[]; v_missing text;
    v_item record; v_owner record; v_active uuid; v_seat record; v_task text; v_key text; v_first int; v_held int; v_stops uuid[];
    -- By ord: NULL, a new run that nothing holds; 'latest' or 'cancel', a successor; 'superseded', by the run in v_heirs.
    v_fates text[]; v_heirs uuid[];
BEGIN
    SELECT array_agg({schema}.new_run_id_v1(p_now, g) ORDER BY g), array_agg('created'::text), array_agg(NULL::json)
    INTO v_ids, v_verdicts, v_matches FROM generate_series(1, v_count) g;
    SELECT i.queue INTO v_missing FROM json_to_recordset(p_runs) AS i(queue text)
    WHERE NOT EXISTS (SELECT 1 FROM {schema}.queue q WHERE q.name = i.queue OFFSET 0) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'queue % is not in the database: run `runlane migrate`', quote_literal(v_missing) USING ERRCODE = 'RL001';
    END IF;
    FOR v_item IN
        SELECT * FROM json_to_recordset(p_runs) AS i(ord int, task text, idempotency_key text, idempotency_ttl interval, payload_hash text)
        WHERE idempotency_key IS NOT NULL ORDER BY task, idempotency_key, ord
    LOOP
        SELECT * INTO v_owner FROM {schema}.take_idempotency_key_v1(
            v_item.task, v_item.idempotency_key, v_ids[v_item.ord], p_now + v_item.idempotency_ttl, v_item.payload_hash, p_now);
        IF v_owner.run_id IS NOT NULL THEN
            v_ids[v_item.ord] := v_owner.run_id;
            v_verdicts[v_item.ord] := 'duplicate';
            v_matches[v_item.ord] := v_owner.payload_hash = v_item.payload_hash;
        END IF;
    END LOOP;
    FOR v_item IN
        SELECT i.*, coalesce(i.singleton_mode, 'return') AS mode
        FROM json_to_recordset(p_runs) AS i(ord int, task text, idempotency_key text, singleton_key text, singleton_mode text)
        WHERE singleton_key IS NOT NULL ORDER BY task, singleton_key, ord
    LOOP
        CONTINUE WHEN v_verdicts[v_item.ord] <> 'created';
        -- v_first: the item of this call that owns the key; v_held: the one that is its successor.
        IF (v_item.task, v_item.singleton_key) IS DISTINCT FROM (v_task, v_key) THEN
            v_task := v_item.task;
            v_key := v_item.singleton_key;
            v_first := NULL;
            v_held := NULL;
        END IF;
        SELECT * INTO v_seat FROM {schema}.seat_run_v1(v_item.task, v_item.singleton_key, v_ids[v_item.ord], v_item.mode, p_eager, p_now);
        IF v_seat.owner IS NULL THEN
            v_first := v_item.ord;
        ELSIF v_item.mode = 'return' THEN
            v_active := v_seat.owner;
            DELETE FROM {schema}.idempotency_key
            WHERE task = v_item.task AND key = v_item.idempotency_key AND run_id = v_ids[v_item.ord];
            -- Later items of this batch may have found the key taken by this run, which there will not be.
            v_ids := array_replace(v_ids, v_ids[v_item.ord], v_active);
            v_verdicts[v_item.ord] := 'singleton_active';
        ELSE
            IF v_fates IS NULL THEN
                v_fates := array_fill(NULL::text, ARRAY[v_count]);
                v_heirs := array_fill(NULL::uuid, ARRAY[v_count]);
            END IF;
            IF v_held IS NOT NULL THEN
                v_fates[v_held] := 'superseded';
                v_heirs[v_held] := v_ids[v_item.ord];
            END IF;
            v_held := v_item.ord;
            v_fates[v_held] := v_item.mode;
            IF v_item.mode = 'cancel' AND v_first IS NOT NULL THEN
                -- Not on its way yet.
                UPDATE {schema}.singleton_key k SET run_id = v_ids[v_item.ord]
                WHERE k.task = v_item.task AND k.key = v_item.singleton_key;
                v_fates[v_first] := 'superseded';
                v_heirs[v_first] := v_ids[v_item.ord];
                v_first := v_item.ord;
                v_fates[v_first] := NULL;
                v_held := NULL;
            ELSIF v_seat.stops THEN
                v_stops := v_stops || v_seat.owner;
            END IF;
        END IF;
    END LOOP;
    RETURN QUERY
    WITH item AS MATERIALIZED (
        SELECT i.*, v_ids[i.ord] AS run_id, v_fates[i.ord] AS fate, q.queue_id, q.name AS queue_name,
               CASE WHEN i.run_at > p_now THEN i.run_at WHEN i.delay > interval '0' THEN p_now + i.delay ELSE p_now END AS due_at
        FROM json_to_recordset(p_runs) AS i(
            ord int, task text, queue text, payload json, tenant text, concurrency_key text, priority int, delay interval, run_at timestamptz,
            idempotency_key text, singleton_key text, max_attempts int, start_timeout interval, finish_timeout interval, actor text,
            trace json, meta json, source text, source_run_id uuid, reason text)
        CROSS JOIN LATERAL (SELECT x.queue_id, x.name FROM {schema}.queue x WHERE x.name = i.queue OFFSET 0) q
        WHERE v_verdicts[i.ord] = 'created'),
    made AS (
        INSERT INTO {schema}.run (run_id, queue_id, task, tenant, concurrency_key, priority, max_attempts, created_at, run_at, payload,
                              idempotency_key, singleton_key, start_timeout, finish_timeout, actor, trace, meta, source, source_run_id)
        SELECT run_id, queue_id, task, tenant, concurrency_key, coalesce(priority, 0), coalesce(max_attempts, 3), p_now, due_at, coalesce(payload, 'null'),
               idempotency_key, singleton_key, start_timeout, finish_timeout, actor, trace, meta, source, source_run_id FROM item),
    ev AS (
        INSERT INTO {schema}.event (run_id, seq, type, at, actor, data)
        SELECT run_id, 1, 'run.created', p_now, actor, CASE WHEN source IS NOT NULL THEN
            json_strip_nulls(json_build_object('source', source, 'source_run_id', source_run_id, 'reason', reason, 'schedule_id',
                CASE source WHEN 'schedule' THEN meta->>'schedule_id' END, 'fire_at', CASE source WHEN 'schedule' THEN meta->>'fire_at' END)) END
        FROM item),
    later AS (
        INSERT INTO {schema}.timer (run_id, queue_id, due_at, priority, status, attempt, failures, seq, hinted_at)
        SELECT run_id, queue_id, due_at, coalesce(priority, 0), 'queued', 0, 0, 1,
               CASE WHEN p_eager AND due_at <= p_now + interval '15 minutes' THEN p_now END
        FROM item WHERE due_at > p_now AND fate IS NULL),
    recorded AS (
        INSERT INTO {schema}.inbox (run_id, queue_id) SELECT run_id, queue_id FROM item WHERE due_at <= p_now AND NOT p_eager AND fate IS NULL),
    limits AS (
        INSERT INTO {schema}.deadline (at, run_id, kind)
        SELECT due_at + start_timeout, run_id, 'start' FROM item WHERE start_timeout IS NOT NULL
        UNION ALL SELECT due_at + finish_timeout, run_id, 'finish' FROM item WHERE finish_timeout IS NOT NULL),
    counted AS (
        INSERT INTO {schema}.queue_counter_delta (queue_id, scheduled)
        SELECT queue_id, count(*) FROM item WHERE due_at > p_now AND NOT p_eager AND fate IS NULL GROUP BY queue_id),
    kept AS (
        SELECT g AS ord, v_ids[g] AS run_id FROM generate_series(1, v_count) g WHERE v_verdicts[g] <> 'created')
    SELECT 'run', item.ord, item.run_id, 'created', item.queue_name, item.tenant, item.concurrency_key, item.due_at,
           item.due_at - p_now,
           CASE WHEN fate IS NOT NULL THEN json_build_object('matches', NULL, 'status', CASE
               WHEN fate = 'superseded' THEN 'cancelled' WHEN item.due_at > p_now THEN 'scheduled' ELSE 'queued' END) END
    FROM item
    UNION ALL
    SELECT 'run', kept.ord, kept.run_id, v_verdicts[kept.ord], q.name, NULL, NULL, coalesce(s.due_at, r.run_at, p_now), NULL,
           json_build_object('matches', v_matches[kept.ord], 'status', coalesce({schema}.run_status_v1(kept.run_id), 'queued'))
    FROM kept
    LEFT JOIN LATERAL (SELECT x.queue_id, x.run_at FROM {schema}.run x WHERE x.run_id = kept.run_id OFFSET 0) r ON true
    LEFT JOIN LATERAL (SELECT x.name FROM {schema}.queue x WHERE x.queue_id = r.queue_id OFFSET 0) q ON true
    LEFT JOIN LATERAL (SELECT x.due_at FROM {schema}.timer x WHERE x.run_id = kept.run_id OFFSET 0) s ON true;
    IF v_fates IS NOT NULL THEN
        PERFORM {schema}.hold_runs_v1(v_ids, v_fates, v_heirs, p_eager, p_now);
        RETURN QUERY SELECT 'stop', 0, i, NULL::text, q.name, NULL::text, NULL::text, NULL::timestamptz, NULL::interval, NULL::json
                     FROM (SELECT DISTINCT unnest(v_stops)) s(i)
                     CROSS JOIN LATERAL (SELECT x.queue_id FROM {schema}.run x WHERE x.run_id = i OFFSET 0) r
                     CROSS JOIN LATERAL (SELECT x.name FROM {schema}.queue x WHERE x.queue_id = r.queue_id OFFSET 0) q;
    END IF;
END $$;

-- Whether new runs of a queue need no place in any order.
CREATE FUNCTION {schema}.dispatches_at_once_v1(q {schema}.queue) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT (q).concurrency_limit IS NULL AND (q).total_limit IS NULL AND (q).throttle_step IS NULL AND (q).paused_parts = 0 AND (q).paused_at IS NULL
$$;

-- Eager placing of due runs of one queue. Where nothing waits and no limit applies the dispatch rows are made at once and no
-- shared row is locked; else the runs join the order of their partitions.
CREATE FUNCTION {schema}.place_runs_v1(p_queue_id int, p_ids uuid[], p_priorities int[], p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue := {schema}.enter_queue_v1(p_queue_id); v_runs {schema}.motion[]; v_shard int := {schema}.counter_shard_v1();
BEGIN
    IF {schema}.dispatches_at_once_v1(q) AND {schema}.take_room_v1(q, v_shard, cardinality(p_ids), p_now) THEN
        IF q.polled_until > p_now THEN
            PERFORM {schema}.tell_pollers_v1(q.queue_id, q.name, false);
        END IF;
        RETURN QUERY
        WITH made AS (
            INSERT INTO {schema}.dispatch (run_id, queue_id, due_at, priority, status, attempt, failures, seq, expiries, dispatched_at,
                                       expires_at, publish_claimed_at)
            SELECT i.run_id, p_queue_id, p_now, i.priority, 'queued', 0, 0, 2, 0, p_now, p_now + q.dispatch_timeout, p_now
            FROM unnest(p_ids, p_priorities) i(run_id, priority)),
        ev AS (
            INSERT INTO {schema}.event (run_id, seq, type, at) SELECT i, 2, 'run.dispatched', p_now FROM unnest(p_ids) i)
        SELECT 'wakeup', 0, i, NULL::text, q.name, NULL::text, NULL::text, p_now, NULL::interval, NULL::json FROM unnest(p_ids) i;
        RETURN;
    END IF;
    SELECT array_agg((i.run_id, NULL, p_now, i.priority, 'queued', 0, 0, 1, 0)::{schema}.motion) INTO v_runs
    FROM unnest(p_ids, p_priorities) i(run_id, priority);
    v_runs := {schema}.resolve_partitions_v1(p_queue_id, v_runs);
    RETURN QUERY SELECT * FROM {schema}.ready_runs_v1(q, v_runs, p_now);
    IF {schema}.has_ready_v1(p_queue_id) AND q.total_limit IS NULL AND q.paused_at IS NULL THEN
        RETURN NEXT ('starved', 0, NULL, NULL, q.name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
    END IF;
END $$;

CREATE FUNCTION {schema}.trigger_runs_v1(p_runs json, p_eager boolean) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp(); v_recorded {schema}.effect[]; lot record; v_shard int;
    -- By subscript: a join of two lists without an index costs the square of their length.
    v_priorities int[] := ARRAY(SELECT coalesce(i.priority, 0) FROM json_to_recordset(p_runs) AS i(ord int, priority int) ORDER BY i.ord);
BEGIN
    SELECT array_agg(e ORDER BY e.ord) INTO v_recorded FROM {schema}.record_runs_v1(p_runs, p_eager, v_now) e;
    RETURN QUERY SELECT (e).* FROM unnest(v_recorded) e WHERE e.kind = 'run';
    IF NOT p_eager THEN
        RETURN;
    END IF;
    -- Not before the keys, which a caller's own transaction may keep for as long as it likes.
    v_shard := {schema}.counter_shard_v1();
    FOR lot IN
        SELECT q.queue_id, array_agg(e.run_id ORDER BY e.ord) FILTER (WHERE e.due_at <= v_now) AS ids,
               array_agg(v_priorities[e.ord] ORDER BY e.ord) FILTER (WHERE e.due_at <= v_now) AS priorities,
               count(*) FILTER (WHERE e.due_at > v_now) AS later, array_agg(e.run_id ORDER BY e.run_id) FILTER (WHERE e.kind = 'stop') AS stops
        FROM unnest(v_recorded) e
        CROSS JOIN LATERAL (SELECT x.queue_id FROM {schema}.queue x WHERE x.name = e.queue OFFSET 0) q
        WHERE e.verdict = 'created' AND e.detail IS NULL OR e.kind = 'stop' GROUP BY q.queue_id ORDER BY q.queue_id
    LOOP
        IF lot.stops IS NOT NULL THEN
            RETURN QUERY SELECT * FROM {schema}.replace_runs_v1(lot.queue_id, lot.stops, lot.ids, lot.priorities, v_now);
        ELSIF lot.ids IS NOT NULL THEN
            RETURN QUERY SELECT * FROM {schema}.place_runs_v1(lot.queue_id, lot.ids, lot.priorities, v_now);
        END IF;
        IF lot.later > 0 THEN
            PERFORM {schema}.count_v1(lot.queue_id, v_shard, 0, lot.later, 0, 0);
        END IF;
    END LOOP;
END $$;

-- The common trigger: runs of one task and queue, due now, without idempotency or singleton key, that differ in what stands in lists.
-- Lists are NULL where no run has any. Where they are dispatched at once, one 'alike' effect tells of all: verdict has their ids, in order.
-- Else as trigger_runs_v1.
CREATE FUNCTION {schema}.trigger_alike_v1(
    p_queue text, p_task text, p_payloads json, p_tenants text[], p_keys text[], p_priorities int[], p_max_attempts int,
    p_start_timeout interval, p_finish_timeout interval, p_actor text, p_trace json, p_meta json) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue; v_now timestamptz; v_ids uuid[]; v_count int := json_array_length(p_payloads);
BEGIN
    SELECT * INTO q FROM {schema}.queue WHERE name = p_queue;
    IF FOUND THEN
        q := {schema}.enter_queue_v1(q.queue_id);
        v_now := clock_timestamp();
    END IF;
    IF q.queue_id IS NULL OR NOT {schema}.dispatches_at_once_v1(q) OR NOT {schema}.take_room_v1(q, {schema}.counter_shard_v1(), v_count, v_now) THEN
        RETURN QUERY SELECT * FROM {schema}.trigger_runs_v1((
            SELECT json_agg(json_build_object('ord', n, 'task', p_task, 'queue', p_queue, 'payload', payload, 'tenant', tenant, 'concurrency_key', key,
                'priority', priority, 'max_attempts', p_max_attempts, 'start_timeout', p_start_timeout, 'finish_timeout', p_finish_timeout,
                'actor', p_actor, 'trace', p_trace, 'meta', p_meta) ORDER BY n)
            FROM ROWS FROM (json_array_elements(p_payloads), unnest(p_tenants), unnest(p_keys), unnest(p_priorities))
                WITH ORDINALITY x(payload, tenant, key, priority, n)), true);
        RETURN;
    END IF;
    IF q.polled_until > v_now THEN
        PERFORM {schema}.tell_pollers_v1(q.queue_id, q.name, false);
    END IF;
    v_ids := ARRAY(SELECT {schema}.new_run_id_v1(v_now, g) FROM generate_series(1, v_count) g);
    INSERT INTO {schema}.run (run_id, queue_id, task, tenant, concurrency_key, priority, max_attempts, created_at, run_at, payload,
                              start_timeout, finish_timeout, actor, trace, meta)
    SELECT x.run_id, q.queue_id, p_task, x.tenant, x.key, coalesce(x.priority, 0), p_max_attempts, v_now, v_now, x.payload,
           p_start_timeout, p_finish_timeout, p_actor, p_trace, p_meta
    FROM ROWS FROM (unnest(v_ids), json_array_elements(p_payloads), unnest(p_tenants), unnest(p_keys), unnest(p_priorities))
        x(run_id, payload, tenant, key, priority);
    INSERT INTO {schema}.event (run_id, seq, type, at, actor)
    SELECT i, e.seq, e.type, v_now, e.actor
    FROM unnest(v_ids) i CROSS JOIN (VALUES (1, 'run.created', p_actor), (2, 'run.dispatched', NULL)) e(seq, type, actor);
    INSERT INTO {schema}.dispatch (run_id, queue_id, due_at, priority, status, attempt, failures, seq, expiries, dispatched_at, expires_at,
                               publish_claimed_at)
    SELECT x.run_id, q.queue_id, v_now, coalesce(x.priority, 0), 'queued', 0, 0, 2, 0, v_now, v_now + q.dispatch_timeout, v_now
    FROM ROWS FROM (unnest(v_ids), unnest(p_priorities)) x(run_id, priority);
    IF p_start_timeout IS NOT NULL OR p_finish_timeout IS NOT NULL THEN
        INSERT INTO {schema}.deadline (at, run_id, kind)
        SELECT v_now + t.after, i, t.kind FROM unnest(v_ids) i
        CROSS JOIN (VALUES (p_start_timeout, 'start'), (p_finish_timeout, 'finish')) t(after, kind) WHERE t.after IS NOT NULL;
    END IF;
    RETURN NEXT ('alike', v_count, NULL, v_ids::text, q.name, NULL, NULL, v_now, NULL, NULL)::{schema}.effect;
END $$;
