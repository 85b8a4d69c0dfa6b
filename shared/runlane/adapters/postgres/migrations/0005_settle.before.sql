-- The end of attempts: outcomes, events, freed capacity and the next dispatch rows in one transaction.
-- p_settlements is a JSON array of {run_id, token, kind, result, failure, delay, reason, final}; see domain/outcome.py.

-- A worker that lost its lease writes nothing but this line of history.
CREATE FUNCTION {schema}.record_refusal_v1(p_run_id uuid, p_kind text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_seq int;
BEGIN
    FOR i IN 1..10 LOOP
        UPDATE {schema}.lease SET seq = seq + 1 WHERE run_id = p_run_id RETURNING seq INTO v_seq;
        EXIT WHEN FOUND;
        UPDATE {schema}.dispatch SET seq = seq + 1 WHERE run_id = p_run_id RETURNING seq INTO v_seq;
        EXIT WHEN FOUND;
        UPDATE {schema}.waiting SET seq = seq + 1 WHERE run_id = p_run_id RETURNING seq INTO v_seq;
        EXIT WHEN FOUND;
        -- Without waiting: the caller may hold partitions, which whoever holds a timer waits for.
        UPDATE {schema}.timer SET seq = seq + 1 WHERE run_id = (SELECT t.run_id FROM {schema}.timer t WHERE t.run_id = p_run_id FOR UPDATE SKIP LOCKED)
        RETURNING seq INTO v_seq;
        EXIT WHEN FOUND;
        UPDATE {schema}.outcome SET seq = seq + 1 WHERE run_id = p_run_id RETURNING seq INTO v_seq;
        EXIT WHEN FOUND;
    END LOOP;
    IF v_seq IS NULL AND EXISTS (SELECT 1 FROM {schema}.timer WHERE run_id = p_run_id) THEN
        RAISE EXCEPTION 'run % is moving', p_run_id USING ERRCODE = 'RL002';
    END IF;
    IF v_seq IS NOT NULL THEN
        INSERT INTO {schema}.event (run_id, seq, type, at, data)
        VALUES (p_run_id, v_seq, 'run.result_refused', p_now, json_build_object('kind', p_kind));
    END IF;
END $$;

-- What became of one settled attempt.
CREATE TYPE {schema}.settled AS (
    run_id          uuid,
    partition_id    bigint,
    kind            text,
    becomes         text,
    ends            boolean,
    attempt         int,
    claims          int,
    failures        int,
    seq             int,
    priority        int,
    due_at          timestamptz
);

-- End the leases of one queue whose tokens match, write outcomes and events. p_settlements is sorted by run id, so that leases are
-- visited in the lock order. Slots are counted in the events here, and freed by the caller.
CREATE FUNCTION {schema}.end_leases_v1(q {schema}.queue, p_settlements json, p_bounded boolean, p_now timestamptz) RETURNS {schema}.settled[]
LANGUAGE plpgsql AS $$
DECLARE v_settled {schema}.settled[];
BEGIN
    WITH taken AS (
        DELETE FROM {schema}.lease l USING json_to_recordset(p_settlements) AS s(
            run_id uuid, token uuid, kind text, result json, failure json, delay interval, reason text, final boolean, keeps_failures boolean)
        WHERE l.run_id = ANY (ARRAY[s.run_id]) AND l.token = s.token AND l.queue_id = q.queue_id AND (s.kind <> 'lease_expired' OR l.expires_at <= p_now)
        RETURNING l.run_id, l.partition_id, l.due_at, l.priority, l.attempt, l.failures, l.seq, s.kind, s.result, s.failure, s.reason, s.keeps_failures,
            coalesce(s.delay, interval '0') AS delay,
            CASE WHEN l.cancel_requested_at IS NOT NULL THEN CASE WHEN s.kind IN ('failed', 'retry') THEN 'failed' ELSE 'cancelled' END
                 WHEN s.kind = 'retry' OR s.kind = 'lease_expired' AND s.final IS NOT TRUE THEN 'retrying'
                 WHEN s.kind = 'lease_expired' THEN 'failed'
                 WHEN s.kind = 'handed_back' THEN 'queued'
                 ELSE s.kind END AS becomes),
    decided AS MATERIALIZED (
        SELECT t.*, t.becomes IN ('succeeded', 'failed', 'cancelled') AS ends,
            CASE t.kind WHEN 'handed_back' THEN t.attempt - 1 ELSE t.attempt END AS claims,
            CASE t.kind WHEN 'released' THEN CASE WHEN t.keeps_failures THEN t.failures ELSE 0 END
                WHEN 'succeeded' THEN t.failures WHEN 'handed_back' THEN t.failures ELSE t.failures + 1 END AS now_failures,
            CASE WHEN t.kind = 'handed_back' AND t.delay <= interval '0' THEN t.due_at ELSE p_now + t.delay END AS now_due,
            -- A lost lease is a line of its own before what came of it.
            t.seq + CASE t.kind WHEN 'lease_expired' THEN 2 ELSE 1 END AS now_seq,
            p.slot_seq + row_number() OVER part AS slot_seq, p.occupied - row_number() OVER part AS occupied,
            row_number() OVER (ORDER BY t.run_id) AS place
        FROM taken t LEFT JOIN LATERAL (
            SELECT x.slot_seq, x.occupied FROM {schema}.partition x WHERE p_bounded AND x.partition_id = t.partition_id OFFSET 0) p ON true
        WINDOW part AS (PARTITION BY t.partition_id ORDER BY t.run_id)),
    ended AS (
        INSERT INTO {schema}.outcome (run_id, status, attempt, failures, seq, ended_at, due_at, result, failure)
        SELECT run_id, becomes, claims, now_failures, now_seq, p_now, due_at, result, failure FROM decided WHERE ends),
    ev AS (
        INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied, queue_slot_seq, queue_occupied, data)
        SELECT run_id, now_seq,
               CASE WHEN becomes = 'queued' THEN 'run.rescheduled' WHEN becomes = 'retrying' THEN 'run.retry_scheduled' ELSE 'run.' || becomes END,
               p_now, attempt, CASE WHEN p_bounded THEN partition_id END, slot_seq, occupied,
               CASE WHEN q.total_limit IS NOT NULL THEN q.slot_seq + place END, CASE WHEN q.total_limit IS NOT NULL THEN q.occupied - place END,
               CASE WHEN kind <> 'succeeded' THEN json_strip_nulls(json_build_object(
                   'reason', reason, 'due_at', CASE WHEN NOT ends THEN now_due END, 'failure', failure)) END
        FROM decided)
    SELECT array_agg((run_id, partition_id, kind, becomes, ends, attempt, claims, now_failures, now_seq, priority, now_due)::{schema}.settled)
    INTO v_settled FROM decided;
    RETURN v_settled;
END $$;

-- The commonest batch by far, in one lean statement: attempts of an unbounded queue that all succeeded. Leases that were asked to stop,
-- and tokens that are lost, are left to end_leases_v1; it may then visit a lease before one that was ended here, out of the lock order,
-- and meet a cancel or a heartbeat that does the same: one of them is tried again.
CREATE FUNCTION {schema}.end_successes_v1(p_queue_id int, p_settlements json, p_now timestamptz) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE v_ended uuid[];
BEGIN
    WITH taken AS (
        DELETE FROM {schema}.lease l USING json_to_recordset(p_settlements) AS s(run_id uuid, token uuid, result json)
        WHERE l.run_id = ANY (ARRAY[s.run_id]) AND l.token = s.token AND l.queue_id = p_queue_id AND l.cancel_requested_at IS NULL
        RETURNING l.run_id, l.due_at, l.attempt, l.failures, l.seq + 1 AS seq, s.result),
    ended AS (
        INSERT INTO {schema}.outcome (run_id, status, attempt, failures, seq, ended_at, due_at, result)
        SELECT run_id, 'succeeded', attempt, failures, seq, p_now, due_at, result FROM taken),
    ev AS (
        INSERT INTO {schema}.event (run_id, seq, type, at, attempt) SELECT run_id, seq, 'run.succeeded', p_now, attempt FROM taken)
    SELECT array_agg(run_id) INTO v_ended FROM taken;
    RETURN v_ended;
END $$;

-- The same on a queue whose partitions have a limit and nothing else: the caller has locked those of the leases. Slots are counted in
-- the events here, and freed by refill_v1. parts: the partitions of what was ended, how many slots of each were freed, and how many of its
-- runs may have them. demand: the sum of these; NULL, if one of the partitions is paused.
CREATE FUNCTION {schema}.end_limited_v1(
    q {schema}.queue, p_settlements json, p_now timestamptz, OUT ended uuid[], OUT parts bigint[], OUT freed int[], OUT counts int[], OUT demand int)
LANGUAGE plpgsql AS $$
BEGIN
    WITH taken AS (
        DELETE FROM {schema}.lease l USING json_to_recordset(p_settlements) AS s(run_id uuid, token uuid, result json)
        WHERE l.run_id = ANY (ARRAY[s.run_id]) AND l.token = s.token AND l.queue_id = q.queue_id AND l.cancel_requested_at IS NULL
        RETURNING l.run_id, l.partition_id, l.due_at, l.attempt, l.failures, l.seq + 1 AS seq, s.result),
    numbered AS MATERIALIZED (
        SELECT t.*, row_number() OVER (PARTITION BY t.partition_id ORDER BY t.run_id)::int AS nth, p.slot_seq, p.occupied, p.waiting,
               p.paused_at IS NOT NULL OR p.tenant_paused_at IS NOT NULL AS is_paused
        FROM taken t CROSS JOIN LATERAL (SELECT * FROM {schema}.partition x WHERE x.partition_id = t.partition_id OFFSET 0) p),
    made AS (
        INSERT INTO {schema}.outcome (run_id, status, attempt, failures, seq, ended_at, due_at, result)
        SELECT run_id, 'succeeded', attempt, failures, seq, p_now, due_at, result FROM numbered),
    ev AS (
        INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied)
        SELECT run_id, seq, 'run.succeeded', p_now, attempt, partition_id, slot_seq + nth, occupied - nth FROM numbered)
    SELECT (SELECT array_agg(run_id) FROM numbered), array_agg(x.partition_id), array_agg(x.n),
           array_agg(x.demand), CASE WHEN NOT bool_or(x.is_paused) THEN sum(x.demand) END
    INTO ended, parts, freed, counts, demand
    FROM (SELECT partition_id, max(nth) AS n, bool_or(is_paused) AS is_paused,
                 greatest(0, least(max(waiting), q.concurrency_limit - max(occupied) + max(nth))) AS demand
          FROM numbered GROUP BY 1) x;
END $$;

-- Free the slots of what was ended by end_limited_v1 and give them to the runs that wait behind them, as dispatch_runs_v1 would; where
-- others compete or the window is full, as grant_slots_v1 does.
CREATE FUNCTION {schema}.refill_v1(
    q {schema}.queue, p_shard int, p_ended int, p_parts bigint[], p_freed int[], p_counts int[], p_demand int, p_now timestamptz)
RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_taken int;
BEGIN
    IF p_demand IS NULL OR NOT {schema}.take_room_v1(q, p_shard, p_demand, p_now, -p_demand, -p_ended) THEN
        PERFORM {schema}.count_v1(q.queue_id, p_shard, 0, 0, 0, -p_ended);
        UPDATE {schema}.partition p SET occupied = p.occupied - x.n, slot_seq = p.slot_seq + x.n
        FROM unnest(p_parts, p_freed) x(id, n) WHERE p.partition_id = ANY (ARRAY[x.id]);
        RETURN QUERY SELECT * FROM {schema}.grant_slots_v1(q, p_parts, p_now);
        RETURN;
    END IF;
    IF p_demand > 0 AND q.polled_until > p_now THEN
        PERFORM {schema}.tell_pollers_v1(q.queue_id, q.name, false);
    END IF;
    RETURN QUERY
    WITH slot AS MATERIALIZED (
        SELECT u.id, u.n, p.tenant_id, p.tenant, p.concurrency_key, p.slot_seq + u.freed AS slot_seq, p.occupied - u.freed AS occupied, p.head
        FROM unnest(p_parts, p_freed, p_counts) u(id, freed, n)
        CROSS JOIN LATERAL (SELECT * FROM {schema}.partition x WHERE x.partition_id = u.id OFFSET 0) p),
    taken AS (
        DELETE FROM {schema}.waiting w USING (
            SELECT x.run_id, s.tenant_id, s.tenant, s.concurrency_key, s.slot_seq, s.occupied
            FROM slot s CROSS JOIN LATERAL (
                SELECT * FROM {schema}.waiting x WHERE x.partition_id = s.id AND x.score >= s.head ORDER BY x.score, x.run_id LIMIT s.n) x) x
        WHERE w.run_id = ANY (ARRAY[x.run_id])
        RETURNING w.*, x.tenant_id, x.tenant, x.concurrency_key, x.slot_seq, x.occupied),
    numbered AS MATERIALIZED (
        SELECT t.*, row_number() OVER (PARTITION BY t.partition_id ORDER BY t.score, t.run_id)::int AS nth FROM taken t),
    made AS (
        INSERT INTO {schema}.dispatch (run_id, queue_id, partition_id, due_at, priority, status, attempt, failures, seq, expiries,
                                   dispatched_at, expires_at, publish_claimed_at)
        SELECT run_id, q.queue_id, partition_id, due_at, priority, status, attempt, failures, seq + 1, expiries, p_now,
               p_now + least(q.dispatch_timeout * power(2, least(expiries, 10)), greatest(q.dispatch_timeout, interval '1 hour')), p_now
        FROM numbered ORDER BY nth, tenant_id NULLS FIRST, partition_id),
    ev AS (
        INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied)
        SELECT run_id, seq + 1, 'run.dispatched', p_now, attempt, partition_id, slot_seq + nth, occupied + nth FROM numbered),
    upd AS (
        UPDATE {schema}.partition p
        SET waiting = p.waiting - x.n, occupied = x.occupied + x.n, slot_seq = x.slot_seq + x.n, head = coalesce(x.last, p.head), hinted_at = NULL,
            ready_at = NULL,
            state = CASE WHEN p.waiting - x.n <= 0 THEN 'e' WHEN x.occupied + x.n >= q.concurrency_limit THEN 'b' ELSE 'r' END
        -- No join, which would look at each run once for each partition.
        FROM (SELECT y.id, max(y.slot_seq) AS slot_seq, max(y.occupied) AS occupied, count(y.score)::int AS n, max(y.score) AS last
              FROM (SELECT id, slot_seq, occupied, NULL::timestamptz AS score FROM slot
                    UNION ALL SELECT partition_id, slot_seq, occupied, score FROM numbered) y GROUP BY 1) x
        WHERE p.partition_id = ANY (ARRAY[x.id]))
    SELECT 'wakeup', nth, run_id, NULL::text, q.name, tenant, concurrency_key, NULL::timestamptz, NULL::interval, NULL::json
    FROM numbered ORDER BY nth, tenant_id NULLS FIRST, partition_id;
    GET DIAGNOSTICS v_taken = ROW_COUNT;
    IF v_taken < p_demand THEN
        PERFORM {schema}.recount_waiting_v1(p_parts);
        PERFORM {schema}.count_v1(q.queue_id, p_shard, p_demand - v_taken, 0, v_taken - p_demand, 0);
    END IF;
END $$;

-- Those that go on: a line of history for a lost lease, and a timer. On a bounded queue, what is due at once goes back into its
-- partition instead, which the caller has locked; elsewhere its wakeup makes it ready.
CREATE FUNCTION {schema}.continue_runs_v1(p_queue_id int, p_settled {schema}.settled[], p_bounded boolean, p_now timestamptz) RETURNS {schema}.motion[]
LANGUAGE plpgsql AS $$
DECLARE v_again {schema}.motion[]; v_shard int := {schema}.counter_shard_v1(); v_later int;
BEGIN
    INSERT INTO {schema}.event (run_id, seq, type, at, attempt)
    SELECT run_id, seq - 1, 'run.lease_expired', p_now, attempt FROM unnest(p_settled) WHERE kind = 'lease_expired';
    INSERT INTO {schema}.timer (run_id, queue_id, due_at, priority, status, attempt, failures, seq, hinted_at)
    SELECT run_id, p_queue_id, due_at, priority, becomes, claims, failures, seq, CASE WHEN due_at <= p_now + interval '15 minutes' THEN p_now END
    FROM unnest(p_settled) WHERE NOT ends AND (due_at > p_now OR NOT p_bounded);
    GET DIAGNOSTICS v_later = ROW_COUNT;
    IF v_later > 0 THEN
        PERFORM {schema}.count_v1(p_queue_id, v_shard, 0, v_later, 0, 0);
    END IF;
    IF p_bounded THEN
        SELECT array_agg((run_id, partition_id, due_at, priority, becomes, claims, failures, seq, 0)::{schema}.motion)
        INTO v_again FROM unnest(p_settled) WHERE NOT ends AND due_at <= p_now;
    END IF;
    RETURN v_again;
END $$;

-- Settle what belongs to one queue; the effects begin with the settled runs, but for successes that are just that. p_owners: those that own a singleton key, which is locked;
-- NULL: none does.
-- p_alone: their partitions are locked already, so no others may be: what callers' transactions recorded meanwhile, runs and successors,
-- is left to those callers and the tick.
-- p_plain: all settlements are successes.
CREATE FUNCTION {schema}.settle_queue_v1(p_queue_id int, p_settlements json, p_ids uuid[], p_owners uuid[], p_alone boolean, p_plain boolean)
RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    q {schema}.queue := {schema}.enter_queue_v1(p_queue_id); v_bounded boolean := q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL;
    v_runs {schema}.motion[]; v_again {schema}.motion[]; v_touched bigint[];
    v_settled {schema}.settled[]; v_goes_on boolean; v_now timestamptz; v_count int; v_shard int := {schema}.counter_shard_v1();
    v_heirs {schema}.heir[]; v_ended uuid[]; v_left int := cardinality(p_ids); v_end record;
BEGIN
    IF NOT p_alone AND EXISTS (SELECT 1 FROM {schema}.inbox WHERE queue_id = p_queue_id) THEN
        v_runs := {schema}.take_recorded_v1(p_queue_id, 100);
    END IF;
    IF p_owners IS NOT NULL AND NOT p_alone THEN
        v_heirs := {schema}.heirs_v1(p_owners, p_queue_id);
        v_runs := v_runs || {schema}.joining_v1(v_heirs);
    END IF;
    IF v_runs IS NOT NULL THEN
        v_runs := {schema}.resolve_partitions_v1(p_queue_id, v_runs);
    END IF;
    IF v_bounded OR v_runs IS NOT NULL THEN
        IF v_runs IS NOT NULL THEN
            v_touched := ARRAY(SELECT m.partition_id FROM unnest(v_runs) m);
        END IF;
        v_touched := ARRAY(
            SELECT p.partition_id FROM {schema}.partition p
            WHERE p.partition_id = ANY (v_touched || ARRAY(SELECT l.partition_id FROM {schema}.lease l WHERE v_bounded AND l.run_id = ANY (p_ids)))
            ORDER BY p.partition_id FOR NO KEY UPDATE);
    END IF;
    v_now := clock_timestamp();
    IF p_plain AND p_owners IS NULL AND v_runs IS NULL AND q.concurrency_limit IS NOT NULL AND q.total_limit IS NULL AND q.throttle_step IS NULL
       AND q.paused_at IS NULL THEN
        SELECT * INTO v_end FROM {schema}.end_limited_v1(q, p_settlements, v_now);
        IF v_end.ended IS NOT NULL THEN
            v_ended := v_end.ended;
            v_left := v_left - cardinality(v_ended);
            RETURN QUERY SELECT * FROM {schema}.refill_v1(
                q, v_shard, cardinality(v_ended), v_end.parts, v_end.freed, v_end.counts, v_end.demand, v_now);
        END IF;
        IF v_left = 0 THEN
            RETURN;
        END IF;
    ELSIF p_plain AND NOT v_bounded AND p_owners IS NULL THEN
        v_ended := {schema}.end_successes_v1(p_queue_id, p_settlements, v_now);
        v_count := coalesce(cardinality(v_ended), 0);
        v_left := v_left - v_count;
        PERFORM {schema}.count_v1(p_queue_id, v_shard, 0, 0, 0, -v_count);
    END IF;
    IF v_left > 0 THEN
        v_settled := {schema}.end_leases_v1(q, p_settlements, v_bounded, v_now);
    END IF;
    v_count := coalesce(cardinality(v_settled), 0);
    v_left := v_left - v_count;
    IF v_count > 0 THEN
        v_goes_on := EXISTS (SELECT 1 FROM unnest(v_settled) WHERE NOT ends OR kind = 'lease_expired');
        IF NOT v_goes_on THEN
            RETURN QUERY SELECT 'settled', 0, m.run_id, m.becomes, q.name, NULL::text, NULL::text, NULL::timestamptz, NULL::interval, NULL::json
                         FROM unnest(v_settled) m WHERE m.becomes <> 'succeeded';
        ELSE
            RETURN QUERY
            SELECT CASE WHEN NOT ends AND (due_at > v_now OR NOT v_bounded) AND due_at <= v_now + interval '15 minutes' THEN 'hint' ELSE 'settled' END,
                   0, m.run_id, becomes, q.name, r.tenant, r.concurrency_key, due_at, greatest(due_at - v_now, interval '0'), NULL::json
            FROM unnest(v_settled) m
            CROSS JOIN LATERAL (SELECT x.tenant, x.concurrency_key FROM {schema}.run x WHERE x.run_id = m.run_id OFFSET 0) r
            WHERE m.becomes <> 'succeeded';
        END IF;
        PERFORM {schema}.count_v1(p_queue_id, v_shard, 0, 0, 0, -v_count);
        IF v_bounded THEN
            UPDATE {schema}.partition p SET occupied = p.occupied - x.n, slot_seq = p.slot_seq + x.n
            FROM (SELECT partition_id, count(*)::int AS n FROM unnest(v_settled) GROUP BY 1) x
            WHERE p.partition_id = ANY (ARRAY[x.partition_id]);
            IF q.total_limit IS NOT NULL THEN
                UPDATE {schema}.queue SET occupied = occupied - v_count, slot_seq = slot_seq + v_count WHERE queue_id = p_queue_id RETURNING * INTO q;
            END IF;
        END IF;
        IF v_goes_on THEN
            v_again := {schema}.continue_runs_v1(p_queue_id, v_settled, v_bounded, v_now);
            IF v_again IS NOT NULL THEN
                v_runs := coalesce(v_runs, '{}') || v_again;
            END IF;
        END IF;
    END IF;
    IF p_owners IS NOT NULL THEN
        RETURN QUERY SELECT * FROM {schema}.succeed_v1(ARRAY(SELECT m.run_id FROM unnest(v_settled) m WHERE m.ends), v_heirs, v_now);
        v_runs := {schema}.without_held_v1(v_runs);
    END IF;
    IF v_left > 0 THEN
        v_ended := v_ended || ARRAY(SELECT m.run_id FROM unnest(v_settled) m);
        RETURN QUERY SELECT * FROM {schema}.refuse_results_v1(p_settlements, ARRAY(SELECT unnest(p_ids) EXCEPT SELECT unnest(v_ended)), v_now);
    END IF;
    IF v_runs IS NOT NULL THEN
        PERFORM {schema}.enqueue_runs_v1(p_queue_id, v_runs);
    END IF;
    IF v_touched IS NOT NULL THEN
        RETURN QUERY SELECT * FROM {schema}.grant_slots_v1(q, v_touched, v_now);
    ELSIF {schema}.has_ready_v1(p_queue_id) THEN
        RETURN QUERY SELECT * FROM {schema}.dispatch_fairly_v1(q, {schema}.window_room_v1(q), v_now);
    END IF;
END $$;

-- Whether this attempt was ended like this by the one who held its token, and as what: a settlement that is tried again because the
-- answer to the first try was lost finds its own work. Only recovery ends an attempt otherwise, and leaves its line before.
CREATE FUNCTION {schema}.settled_before_v1(p_run_id uuid, p_attempt int, p_kind text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE e.type WHEN 'run.retry_scheduled' THEN 'retrying' WHEN 'run.rescheduled' THEN 'queued' ELSE substr(e.type, 5) END
    FROM {schema}.event c CROSS JOIN LATERAL (
        SELECT n.type FROM {schema}.event n
        WHERE n.run_id = p_run_id AND n.seq > c.seq AND n.type IN ('run.succeeded', 'run.failed', 'run.cancelled', 'run.retry_scheduled',
              'run.released', 'run.rescheduled', 'run.lease_expired')
        ORDER BY n.seq LIMIT 1) e
    WHERE c.run_id = p_run_id AND c.type = 'run.claimed' AND c.attempt = p_attempt AND e.type = ANY (CASE p_kind
        WHEN 'succeeded' THEN ARRAY['run.succeeded', 'run.cancelled'] WHEN 'failed' THEN ARRAY['run.failed']
        WHEN 'retry' THEN ARRAY['run.retry_scheduled', 'run.failed'] WHEN 'released' THEN ARRAY['run.released', 'run.cancelled']
        WHEN 'handed_back' THEN ARRAY['run.rescheduled', 'run.cancelled'] END)
    LIMIT 1
$$;

-- A settlement that carries its attempt is tried again: what its first try has settled is answered as settled.
CREATE FUNCTION {schema}.refuse_results_v1(p_settlements json, p_ids uuid[], p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_refused record; v_became text;
BEGIN
    FOR v_refused IN
        SELECT s.run_id, s.kind, s.attempt FROM json_to_recordset(p_settlements) AS s(run_id uuid, kind text, attempt int)
        WHERE s.run_id = ANY (p_ids) ORDER BY 1
    LOOP
        IF v_refused.attempt IS NOT NULL THEN
            v_became := {schema}.settled_before_v1(v_refused.run_id, v_refused.attempt, v_refused.kind);
            IF v_became IS NOT NULL THEN
                RETURN NEXT ('settled', 0, v_refused.run_id, v_became, NULL, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
                CONTINUE;
            END IF;
        END IF;
        IF v_refused.kind <> 'lease_expired' THEN
            PERFORM {schema}.record_refusal_v1(v_refused.run_id, v_refused.kind, p_now);
        END IF;
        RETURN NEXT ('refused', 0, v_refused.run_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
    END LOOP;
END $$;

-- p_ids are the runs of the settlements, sorted. Nearly always they are all of one queue, and then its statements do the rest.
-- p_plain, p_alone: see settle_queue_v1. A success that the answer does not name has succeeded.
CREATE FUNCTION {schema}.settle_runs_v1(p_settlements json, p_ids uuid[], p_plain boolean DEFAULT false, p_alone boolean DEFAULT false) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_low int; v_high int; v_lot record; v_matched uuid[] := '{}'; v_owners uuid[];
BEGIN
    -- Keys come before any queue. A run under a lease owns its key or has none, so nothing is missed by looking first.
    PERFORM 1 FROM {schema}.singleton_key WHERE run_id = ANY (p_ids) LIMIT 1;
    IF FOUND THEN
        v_owners := {schema}.lock_singletons_v1(p_ids);
    END IF;
    SELECT min(queue_id), max(queue_id) INTO v_low, v_high FROM {schema}.lease WHERE run_id = ANY (p_ids);
    IF v_low = v_high THEN
        RETURN QUERY SELECT * FROM {schema}.settle_queue_v1(v_low, p_settlements, p_ids, v_owners, p_alone, p_plain);
        RETURN;
    END IF;
    FOR v_lot IN
        SELECT queue_id, array_agg(run_id) AS ids FROM {schema}.lease WHERE run_id = ANY (p_ids) GROUP BY 1 ORDER BY 1
    LOOP
        RETURN QUERY SELECT * FROM {schema}.settle_queue_v1(v_lot.queue_id, p_settlements, v_lot.ids,
            (SELECT array_agg(o) FROM unnest(v_owners) o WHERE o = ANY (v_lot.ids)), p_alone, p_plain);
        v_matched := v_matched || v_lot.ids;
    END LOOP;
    IF cardinality(v_matched) < cardinality(p_ids) THEN
        RETURN QUERY SELECT * FROM {schema}.refuse_results_v1(p_settlements, ARRAY(SELECT unnest(p_ids) EXCEPT SELECT unnest(v_matched)),
                                                          clock_timestamp());
    END IF;
END $$;

-- The commonest turn in one-at-a-time work, in single-row statements: one attempt of a full partition ends, and its slot goes to the
-- partition's next run, which this worker takes at once. It does what end_leases, grant_slots and claim_oldest would do, at a
-- quarter of their start-up cost. Answers the settled run and the claim; NULL, and nothing written: not this case, go the general way;
-- empty: go that way as well, but for this run alone, as its partition has changed while it was waited for, and is locked now.
CREATE FUNCTION {schema}.hand_over_v1(p_settlement json, v_id uuid, p_queues text[], p_lease interval, p_worker text) RETURNS {schema}.claim[]
LANGUAGE plpgsql AS $$
DECLARE
    v_kind text := p_settlement->>'kind'; v_token uuid := p_settlement->>'token';
    l {schema}.lease; q {schema}.queue; p {schema}.partition; w {schema}.waiting; r record; v_now timestamptz;
    v_key {schema}.singleton_key;
    v_shard int := pg_backend_pid() % 32; v_settled {schema}.claim; v_next {schema}.claim; v_new_token uuid := gen_random_uuid(); v_told json;
BEGIN
    IF v_kind NOT IN ('succeeded', 'failed') THEN
        RETURN NULL;
    END IF;
    SELECT * INTO l FROM {schema}.lease WHERE run_id = v_id AND token = v_token;
    IF l.partition_id IS NULL OR l.cancel_requested_at IS NOT NULL THEN
        RETURN NULL;
    END IF;
    -- A key comes before the shard and the queue in the lock order. One that has a successor goes the general way.
    SELECT * INTO v_key FROM {schema}.singleton_key WHERE run_id = v_id FOR UPDATE;
    IF FOUND THEN
        PERFORM 1 FROM {schema}.successor h WHERE h.task = v_key.task AND h.key = v_key.key LIMIT 1;
        IF FOUND THEN RETURN NULL; END IF;
    END IF;
    IF NOT pg_try_advisory_xact_lock(1919317613, v_shard) THEN
        v_shard := {schema}.counter_shard_v1();
    END IF;
    PERFORM pg_advisory_xact_lock_shared(1919317612, l.queue_id);
    SELECT * INTO q FROM {schema}.queue WHERE queue_id = l.queue_id;
    IF q.concurrency_limit IS NULL OR q.total_limit IS NOT NULL OR q.paused_at IS NOT NULL OR NOT q.name = ANY (p_queues) THEN
        RETURN NULL;
    END IF;
    -- Something else to fold or to choose from: one probe a statement, which starts cheaper than a condition of four subqueries.
    PERFORM 1 FROM {schema}.inbox WHERE queue_id = q.queue_id LIMIT 1;
    IF FOUND THEN RETURN NULL; END IF;
    PERFORM 1 FROM {schema}.partition WHERE queue_id = q.queue_id AND state = 'r' AND tenant_id IS NULL LIMIT 1;
    IF FOUND THEN RETURN NULL; END IF;
    PERFORM 1 FROM {schema}.tenant WHERE queue_id = q.queue_id AND ready LIMIT 1;
    IF FOUND THEN RETURN NULL; END IF;
    IF q.throttle_step IS NOT NULL THEN
        v_now := clock_timestamp();
        PERFORM 1 FROM {schema}.partition WHERE queue_id = q.queue_id AND state = 't' AND ready_at <= v_now LIMIT 1;
        IF FOUND THEN RETURN NULL; END IF;
    END IF;
    PERFORM 1 FROM {schema}.dispatch LIMIT 1;
    IF FOUND THEN
        PERFORM 1 FROM {schema}.queue s CROSS JOIN LATERAL (SELECT 1 FROM {schema}.dispatch d WHERE d.queue_id = s.queue_id LIMIT 1) d
        WHERE s.name = ANY (p_queues) LIMIT 1;
        IF FOUND THEN RETURN NULL; END IF;
    END IF;
    -- Looked at before it is locked, which is the last thing to do: while it is held no other partition may be made or waited for. No
    -- pause comes in between, as that takes the queue alone.
    SELECT * INTO p FROM {schema}.partition WHERE partition_id = l.partition_id;
    IF p.paused_at IS NOT NULL OR p.tenant_paused_at IS NOT NULL OR (p.waiting > 0 AND (
       p.occupied <> q.concurrency_limit OR {schema}.next_start_v1(q, p.throttle_clock, p.reserved, 0, v_now) > v_now)) THEN
        RETURN NULL;
    END IF;
    SELECT * INTO p FROM {schema}.partition WHERE partition_id = l.partition_id FOR NO KEY UPDATE;
    IF p.waiting > 0 AND (p.occupied <> q.concurrency_limit OR {schema}.next_start_v1(q, p.throttle_clock, p.reserved, 0, v_now) > v_now) THEN
        RETURN '{}';
    END IF;
    DELETE FROM {schema}.lease WHERE run_id = v_id AND token = v_token AND cancel_requested_at IS NULL RETURNING * INTO l;
    IF NOT FOUND THEN
        RETURN '{}';
    END IF;
    v_now := clock_timestamp();
    INSERT INTO {schema}.outcome (run_id, status, attempt, failures, seq, ended_at, due_at, result, failure)
    VALUES (v_id, v_kind, l.attempt, l.failures + CASE v_kind WHEN 'failed' THEN 1 ELSE 0 END, l.seq + 1, v_now, l.due_at,
            p_settlement->'result', p_settlement->'failure');
    IF v_key.run_id IS NOT NULL THEN
        DELETE FROM {schema}.singleton_key WHERE run_id = v_id;
    END IF;
    v_told := CASE v_kind WHEN 'failed' THEN json_strip_nulls(json_build_object(
        'reason', p_settlement->'reason', 'failure', p_settlement->'failure')) END;
    v_settled.kind := 'settled'; v_settled.run_id := v_id; v_settled.queue := q.name; v_settled.verdict := v_kind;
    IF p.waiting = 0 THEN
        INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied, data)
        VALUES (v_id, l.seq + 1, 'run.' || v_kind, v_now, l.attempt, p.partition_id, p.slot_seq + 1, p.occupied - 1, v_told);
        UPDATE {schema}.partition SET occupied = occupied - 1, slot_seq = slot_seq + 1 WHERE partition_id = p.partition_id;
        PERFORM {schema}.count_v1(q.queue_id, v_shard, 0, 0, 0, -1);
        RETURN ARRAY[v_settled];
    END IF;
    DELETE FROM {schema}.waiting WHERE ctid = (
        SELECT ctid FROM {schema}.waiting WHERE partition_id = p.partition_id AND score >= p.head ORDER BY score, run_id LIMIT 1)
    RETURNING * INTO w;
    IF NOT FOUND THEN
        -- Its row was written meanwhile, as by a refused result, and stands elsewhere. By its key it is waited for.
        DELETE FROM {schema}.waiting x WHERE x.partition_id = p.partition_id AND (x.score, x.run_id) = (
            SELECT y.score, y.run_id FROM {schema}.waiting y WHERE y.partition_id = p.partition_id AND y.score >= p.head
            ORDER BY y.score, y.run_id LIMIT 1) RETURNING * INTO STRICT w;
    END IF;
    INSERT INTO {schema}.lease (run_id, token, queue_id, partition_id, due_at, priority, status, attempt, failures, seq, expires_at)
    VALUES (w.run_id, v_new_token, q.queue_id, p.partition_id, w.due_at, w.priority, w.status, w.attempt + 1, w.failures, w.seq + 2, v_now + p_lease);
    INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied, actor, data)
    VALUES (v_id, l.seq + 1, 'run.' || v_kind, v_now, l.attempt, p.partition_id, p.slot_seq + 1, p.occupied - 1, NULL, v_told),
           (w.run_id, w.seq + 1, 'run.dispatched', v_now, w.attempt, p.partition_id, p.slot_seq + 2, p.occupied, NULL, NULL),
           (w.run_id, w.seq + 2, 'run.claimed', v_now, w.attempt + 1, NULL, NULL, NULL, p_worker, NULL);
    UPDATE {schema}.partition SET waiting = waiting - 1, slot_seq = slot_seq + 2, head = w.score,
           throttle_clock = coalesce({schema}.throttle_base_v1(q, throttle_clock, reserved, v_now) + q.throttle_step, throttle_clock),
           state = CASE WHEN waiting = 1 THEN 'e' ELSE state END WHERE partition_id = p.partition_id;
    PERFORM {schema}.count_v1(q.queue_id, v_shard, -1, 0, 0, 0);
    SELECT task, payload, max_attempts, tenant, concurrency_key, created_at, trace, meta INTO r FROM {schema}.run WHERE run_id = w.run_id;
    v_next := ('claim', w.run_id::text, v_new_token::text, r.task, q.name, r.payload, w.attempt + 1, w.failures, r.max_attempts, r.tenant,
               r.concurrency_key, w.due_at, r.created_at, v_now, r.trace, r.meta, NULL, NULL);
    RETURN ARRAY[v_settled, v_next];
END $$;

-- Settle, then lease the oldest unclaimed dispatch rows of these queues, as inline continuation does: one round trip and one commit a
-- turn. What is claimed here needs no wakeup, so none is answered for it.
CREATE FUNCTION {schema}.settle_and_claim_v1(
    p_settlements json, p_ids uuid[], p_plain boolean, p_queues text[], p_limit int, p_lease interval, p_worker text)
RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
DECLARE v_effects {schema}.effect[]; v_claims {schema}.claim[]; v_claim {schema}.claim; v_alone boolean := false;
BEGIN
    IF cardinality(p_ids) = 1 AND p_limit > 0 THEN
        v_claims := {schema}.hand_over_v1(p_settlements->0, p_ids[1], p_queues, p_lease, p_worker);
        IF cardinality(v_claims) > 0 THEN
            FOREACH v_claim IN ARRAY v_claims LOOP
                RETURN NEXT v_claim;
            END LOOP;
            RETURN;
        END IF;
        v_alone := v_claims IS NOT NULL;
    END IF;
    SELECT array_agg(e) INTO v_effects FROM {schema}.settle_runs_v1(p_settlements, p_ids, p_plain, v_alone) e;
    SELECT array_agg(c) INTO v_claims FROM {schema}.claim_oldest_v1(p_queues, p_limit, p_lease, p_worker) c;
    RETURN QUERY SELECT * FROM unnest(v_claims);
    RETURN QUERY
    SELECT c.* FROM unnest(v_effects) e CROSS JOIN LATERAL {schema}.effect_as_claim_v1(e) c
    WHERE e.kind <> 'wakeup' OR e.run_id::text NOT IN (SELECT m.run_id FROM unnest(v_claims) m WHERE m.kind = 'claim');
END $$;

-- Extend every lease whose token is still stored, even after its expiry, in one statement.
CREATE FUNCTION {schema}.heartbeat_v1(p_ids uuid[], p_tokens uuid[], p_lease interval) RETURNS TABLE (run_id text, cancellation_requested boolean)
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    UPDATE {schema}.lease l SET expires_at = v_now + p_lease
    FROM (SELECT * FROM unnest(p_ids, p_tokens) i(id, token) ORDER BY 1) i WHERE l.run_id = ANY (ARRAY[i.id]) AND l.token = i.token
    RETURNING l.run_id::text, l.cancel_requested_at IS NOT NULL;
END $$;
