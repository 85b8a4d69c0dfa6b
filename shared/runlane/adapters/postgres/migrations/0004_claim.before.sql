-- Wakeups in, leases out.

CREATE TYPE {schema}.claim AS (
    kind            text,
    run_id          text,
    token           text,
    task            text,
    queue           text,
    payload         json,
    attempt         int,
    failures        int,
    max_attempts    int,
    tenant          text,
    concurrency_key text,
    due_at          timestamptz,
    created_at      timestamptz,
    claimed_at      timestamptz,
    trace           json,
    meta            json,
    verdict         text,
    due_in          interval
);

-- Turn dispatch rows into leases. Occupancy does not change, so no partition is locked. It waits for a row that another claim or
-- a publisher's mark holds, rather than pass it over: a wakeup passed over would be lost. p_ids is sorted: rows are visited in the
-- lock order. p_permitted: the throttle, if there is one, permits these to start. p_waits, p_tells: see lease_throttled_v1. A row that has
-- a start_at while it may not have one came under a throttle after the queue was read: it is left to the next claim, which is told to come.
CREATE FUNCTION {schema}.lease_dispatched_v1(
    p_queue_id int, p_ids uuid[], p_lease interval, p_worker text, p_now timestamptz, p_permitted boolean, p_waits boolean, p_tells boolean)
RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
DECLARE
    v_shard int := {schema}.counter_shard_v1(); v_low uuid := p_ids[1]; v_high uuid := p_ids[cardinality(p_ids)]; v_queue text; v_count int;
    v_throttled boolean; q {schema}.queue;
    -- One token for all, as every write names the run beside it: making one costs as much as an insert.
    v_token uuid := gen_random_uuid();
BEGIN
    SELECT name, throttle_step IS NOT NULL INTO v_queue, v_throttled FROM {schema}.queue WHERE queue_id = p_queue_id;
    IF v_throttled AND NOT p_permitted THEN
        RETURN QUERY SELECT * FROM {schema}.lease_throttled_v1(p_queue_id, p_ids, p_lease, p_worker, p_waits, p_tells);
        RETURN;
    END IF;
    RETURN QUERY
    WITH taken AS (
        DELETE FROM {schema}.dispatch d USING unnest(p_ids) i(id)
        WHERE d.run_id = ANY (ARRAY[i.id]) AND (p_permitted OR d.start_at IS NULL) RETURNING d.*),
    leased AS (
        INSERT INTO {schema}.lease (run_id, token, queue_id, partition_id, due_at, priority, status, attempt, failures, seq, expires_at)
        SELECT run_id, v_token, queue_id, partition_id, due_at, priority, status, attempt + 1, failures, seq + 1, p_now + p_lease
        FROM taken
        RETURNING run_id, due_at, attempt, failures, seq),
    ev AS (
        INSERT INTO {schema}.event (run_id, seq, type, at, attempt, actor)
        SELECT run_id, seq, 'run.claimed', p_now, attempt, p_worker FROM leased)
    SELECT 'claim', l.run_id::text, v_token::text, r.task, v_queue, r.payload, l.attempt, l.failures, r.max_attempts, r.tenant, r.concurrency_key,
           l.due_at, r.created_at, p_now, r.trace, r.meta, NULL::text, NULL::interval
    FROM leased l CROSS JOIN LATERAL (
        SELECT x.task, x.payload, x.max_attempts, x.tenant, x.concurrency_key, x.created_at, x.trace, x.meta
        FROM {schema}.run x WHERE x.run_id = l.run_id AND x.run_id >= v_low AND x.run_id <= v_high OFFSET 0) r;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    PERFORM {schema}.count_v1(p_queue_id, v_shard, 0, 0, -v_count, v_count);
    IF p_tells AND NOT p_permitted AND v_count < cardinality(p_ids) THEN
        SELECT * INTO q FROM {schema}.queue WHERE queue_id = p_queue_id;
        RETURN QUERY SELECT * FROM {schema}.tell_throttled_v1(q, p_ids, NULL, false);
    END IF;
END $$;

-- A wakeup without a dispatch row: say why there is nothing to run, or make its run ready and let the fair order pick. What is
-- picked is claimed by the caller as far as it came for it; the rest become wakeups, as do runs of others that a throttle starts later.
CREATE FUNCTION {schema}.wake_runs_v1(p_ids uuid[], p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE lot record; q {schema}.queue; v_runs {schema}.motion[]; v_due {schema}.motion[]; v_effects {schema}.effect[]; v_asleep bigint[]; v_room int;
        v_waits boolean := false;
BEGIN
    IF EXISTS (SELECT 1 FROM (SELECT x.expires_at FROM {schema}.lease x WHERE x.run_id = ANY (p_ids) OFFSET 0) l WHERE l.expires_at <= p_now) THEN
        v_waits := {schema}.recovery_waits_v1();
    END IF;
    RETURN QUERY
    SELECT CASE WHEN l.run_id IS NOT NULL AND l.expires_at <= p_now AND NOT v_waits THEN 'expired' ELSE 'refusal' END, 0, i.id,
           CASE WHEN o.run_id IS NOT NULL THEN 'terminal' WHEN l.run_id IS NOT NULL THEN 'leased'
                WHEN t.due_at > p_now THEN 'not_due' WHEN r.run_id IS NULL THEN 'not_found' ELSE 'leased' END,
           NULL::text, NULL::text, NULL::text, t.due_at, t.due_at - p_now, NULL::json
    FROM unnest(p_ids) i(id)
    LEFT JOIN LATERAL (SELECT x.run_id FROM {schema}.outcome x WHERE x.run_id = i.id OFFSET 0) o ON true
    LEFT JOIN LATERAL (SELECT x.run_id, x.expires_at FROM {schema}.lease x WHERE x.run_id = i.id OFFSET 0) l ON true
    LEFT JOIN LATERAL (SELECT x.run_id, x.due_at FROM {schema}.timer x WHERE x.run_id = i.id OFFSET 0) t ON true
    LEFT JOIN LATERAL (SELECT x.run_id FROM {schema}.run x WHERE x.run_id = i.id OFFSET 0) r ON true
    WHERE NOT (t.run_id IS NOT NULL AND t.due_at <= p_now)
      AND NOT EXISTS (SELECT 1 FROM {schema}.waiting w WHERE w.run_id = i.id OFFSET 0)
      AND NOT EXISTS (SELECT 1 FROM {schema}.inbox b WHERE b.run_id = i.id OFFSET 0);
    FOR lot IN
        SELECT x.queue_id, array_agg(x.id) AS ids
        FROM (SELECT w.queue_id, w.run_id AS id FROM {schema}.waiting w WHERE w.run_id = ANY (p_ids)
              UNION ALL SELECT b.queue_id, b.run_id FROM {schema}.inbox b WHERE b.run_id = ANY (p_ids)
              UNION ALL SELECT t.queue_id, t.run_id
              -- Apart, so that the time's index is not walked for it.
              FROM (SELECT x.* FROM {schema}.timer x WHERE x.run_id = ANY (p_ids) OFFSET 0) t WHERE t.due_at <= p_now) x
        GROUP BY 1 ORDER BY 1
    LOOP
        q := {schema}.enter_queue_v1(lot.queue_id);
        v_runs := {schema}.take_recorded_v1(lot.queue_id, 1000);
        v_due := {schema}.take_due_v1(lot.queue_id, lot.ids, p_now);
        IF v_due IS NOT NULL THEN
            v_runs := coalesce(v_runs, '{}') || v_due;
        END IF;
        v_runs := {schema}.resolve_partitions_v1(lot.queue_id, v_runs);
        SELECT array_agg(e) INTO v_effects FROM {schema}.ready_runs_v1(q, v_runs, p_now) e;
        RETURN QUERY
        SELECT CASE WHEN e.kind = 'wakeup' AND e.ordinality <= cardinality(lot.ids) AND (e.due_in IS NULL OR e.run_id = ANY (lot.ids))
                    THEN 'picked' ELSE e.kind END, e.ord, e.run_id, e.verdict, e.queue, e.tenant,
               e.concurrency_key, e.due_at, e.due_in, e.detail
        FROM unnest(v_effects) WITH ORDINALITY e;
        IF q.throttle_step IS NOT NULL THEN
            -- With what has just been dispatched.
            SELECT * INTO q FROM {schema}.queue WHERE queue_id = lot.queue_id;
            v_room := {schema}.window_room_v1(q);
            -- Whose hint has come, and found that others started late meanwhile.
            v_asleep := ARRAY(
                SELECT DISTINCT p.partition_id FROM unnest(lot.ids) i(id)
                CROSS JOIN LATERAL (SELECT x.partition_id FROM {schema}.waiting x WHERE x.run_id = i.id OFFSET 0) w
                CROSS JOIN LATERAL (SELECT x.* FROM {schema}.partition x WHERE x.partition_id = w.partition_id OFFSET 0) p
                WHERE p.state = 't' AND {schema}.next_start_v1(q, p.throttle_clock, p.reserved, 0, p_now) > p_now + interval '2 seconds');
            IF v_room > 0 AND q.throttle_step > q.throttle_ahead / 2 THEN
                RETURN QUERY SELECT * FROM {schema}.hint_throttled_v1(q, v_asleep, p_now, true);
            END IF;
        END IF;
        RETURN QUERY
        SELECT 'refusal', 0, i.id, CASE WHEN q.paused_at IS NOT NULL OR p.paused_at IS NOT NULL OR p.tenant_paused_at IS NOT NULL
                                        THEN 'paused' WHEN p.state = 't' AND (v_room > 0 OR p.ready_at > p_now) THEN 'throttled'
                                        ELSE 'at_capacity' END,
               q.name, NULL::text, NULL::text, NULL::timestamptz,
               -- Soon enough to be held until then, by whoever has the wakeup. One that was passed over since its rows are locked comes again soon.
               CASE WHEN p.state = 't' AND q.paused_at IS NULL AND p.start_at <= p_now + interval '2 seconds'
                    THEN CASE WHEN p.start_at > p_now THEN p.start_at - p_now WHEN v_room > 0 THEN interval '20 milliseconds' END END, NULL::json
        FROM unnest(lot.ids) i(id)
        CROSS JOIN LATERAL (SELECT x.partition_id FROM {schema}.waiting x WHERE x.run_id = i.id OFFSET 0) w
        CROSS JOIN LATERAL (
            SELECT x.paused_at, x.tenant_paused_at, x.state, x.ready_at, {schema}.next_start_v1(q, x.throttle_clock, x.reserved, 0, p_now) AS start_at
            FROM {schema}.partition x WHERE x.partition_id = w.partition_id OFFSET 0) p;
    END LOOP;
END $$;

-- Take due timers out, as motions. Rows that another transaction is moving are passed over.
CREATE FUNCTION {schema}.take_due_v1(p_queue_id int, p_ids uuid[], p_now timestamptz) RETURNS {schema}.motion[]
LANGUAGE plpgsql AS $$
DECLARE v_runs {schema}.motion[]; v_shard int := {schema}.counter_shard_v1();
BEGIN
    WITH mine AS MATERIALIZED (
        SELECT run_id, queue_id, due_at FROM {schema}.timer WHERE run_id = ANY (p_ids) ORDER BY run_id FOR UPDATE SKIP LOCKED),
    taken AS (
        DELETE FROM {schema}.timer t USING mine
        WHERE t.run_id = ANY (ARRAY[mine.run_id]) AND mine.queue_id = p_queue_id AND mine.due_at <= p_now RETURNING t.*)
    SELECT array_agg((run_id, NULL, due_at, priority, status, attempt, failures, seq, 0)::{schema}.motion) INTO v_runs FROM taken;
    IF v_runs IS NOT NULL THEN
        PERFORM {schema}.count_v1(p_queue_id, v_shard, 0, -cardinality(v_runs), 0, 0);
    END IF;
    RETURN v_runs;
END $$;

-- Claims free the dispatch window: when half of it is open and ready partitions wait for it, fill it. The caller holds dispatch
-- rows, which come last in the lock order; so this never waits for a lock, and leaves the work to whoever holds one.
CREATE FUNCTION {schema}.refill_window_v1(p_queue_id int, p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue := {schema}.try_enter_queue_v1(p_queue_id); v_room int; v_now timestamptz := p_now; v_is_due boolean := false;
BEGIN
    IF q.queue_id IS NULL THEN
        RETURN;
    END IF;
    v_room := {schema}.window_room_v1(q);
    IF q.throttle_step IS NOT NULL THEN
        -- Throttled partitions have their own time to come back, which is not put off.
        v_now := clock_timestamp();
        v_is_due := EXISTS (SELECT 1 FROM {schema}.partition WHERE queue_id = p_queue_id AND state = 't' AND ready_at <= v_now);
    END IF;
    IF v_room > 0 AND (v_is_due OR v_room >= least(q.dispatch_window / 2, coalesce(q.total_limit, q.dispatch_window))) THEN
        RETURN QUERY SELECT * FROM {schema}.dispatch_fairly_v1(q, v_room, v_now);
    END IF;
END $$;

CREATE FUNCTION {schema}.effect_as_claim_v1(e {schema}.effect) RETURNS {schema}.claim
LANGUAGE sql IMMUTABLE AS $$
    SELECT (e.kind, e.run_id::text, NULL, NULL, e.queue, NULL, NULL, NULL, NULL, e.tenant, e.concurrency_key, e.due_at, NULL, NULL, NULL, NULL,
            e.verdict, e.due_in)::{schema}.claim
$$;

-- Leases found expired on the way, for the caller to recover.
CREATE FUNCTION {schema}.expired_claims_v1(p_woken {schema}.effect[]) RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT 'expired', l.run_id::text, l.token::text, r.task, q.name, NULL::json, l.attempt, l.failures, r.max_attempts, r.tenant,
           r.concurrency_key, l.due_at, r.created_at, NULL::timestamptz, NULL::json, NULL::json,
           CASE WHEN l.cancel_requested_at IS NOT NULL THEN 'cancellation_requested' END, NULL::interval
    FROM unnest(p_woken) e
    CROSS JOIN LATERAL (SELECT x.* FROM {schema}.lease x WHERE x.run_id = e.run_id OFFSET 0) l
    CROSS JOIN LATERAL (SELECT x.* FROM {schema}.run x WHERE x.run_id = l.run_id OFFSET 0) r
    CROSS JOIN LATERAL (SELECT x.name FROM {schema}.queue x WHERE x.queue_id = l.queue_id OFFSET 0) q WHERE e.kind = 'expired';
END $$;

-- What was picked for runs that may not start where their wakeups came: a wakeup for each but those of p_own.
CREATE FUNCTION {schema}.send_picked_v1(p_woken {schema}.effect[], p_own uuid[]) RETURNS {schema}.effect[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg((CASE WHEN e.kind NOT IN ('picked', 'wakeup') THEN e.kind WHEN e.run_id = ANY (p_own) THEN 'picked' ELSE 'wakeup' END,
                      e.ord, e.run_id, e.verdict, e.queue, e.tenant, e.concurrency_key, e.due_at, e.due_in, e.detail)::{schema}.effect)
    FROM unnest(p_woken) e
$$;

-- Wakeups that came where their runs may not start, as from the timers queue of FIFO queues: make the runs ready, dispatch in fair
-- order, and answer wakeups for what was picked. A run that has its dispatch row already gets its wakeup once more.
CREATE FUNCTION {schema}.forward_runs_v1(p_ids uuid[]) RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp(); v_sent uuid[]; v_missing uuid[]; v_woken {schema}.effect[];
BEGIN
    v_sent := ARRAY(SELECT d.run_id FROM {schema}.dispatch d WHERE d.run_id = ANY (p_ids));
    RETURN QUERY
    SELECT c.* FROM unnest(v_sent) i CROSS JOIN LATERAL (
        SELECT x.tenant, x.concurrency_key, (SELECT q.name FROM {schema}.queue q WHERE q.queue_id = x.queue_id) AS name
        FROM {schema}.run x WHERE x.run_id = i OFFSET 0) r
    CROSS JOIN LATERAL {schema}.effect_as_claim_v1(('wakeup', 0, i, NULL, r.name, r.tenant, r.concurrency_key, NULL, NULL, NULL)::{schema}.effect) c;
    v_missing := ARRAY(SELECT unnest(p_ids) EXCEPT SELECT unnest(v_sent) ORDER BY 1);
    IF cardinality(v_missing) > 0 THEN
        SELECT array_agg(e) INTO v_woken FROM {schema}.wake_runs_v1(v_missing, v_now) e;
        RETURN QUERY SELECT c.* FROM unnest({schema}.send_picked_v1(v_woken, '{}')) e CROSS JOIN LATERAL {schema}.effect_as_claim_v1(e) c
                     WHERE e.kind <> 'expired';
        RETURN QUERY SELECT * FROM {schema}.expired_claims_v1(v_woken);
    END IF;
END $$;

-- p_ids is sorted and without repeats. Nearly always every wakeup has its dispatch row, all of one queue, or finds its run ended.
-- p_own_only: a wakeup starts its own run or none, as deliveries that are kept in order must.
CREATE FUNCTION {schema}.claim_runs_v1(p_ids uuid[], p_lease interval, p_worker text, p_own_only boolean DEFAULT false)
RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp(); v_ids uuid[]; v_missing uuid[]; v_mine uuid[]; v_woken {schema}.effect[]; v_queues int[];
    v_found int; v_low int; v_high int; v_ended uuid[];
BEGIN
    SELECT count(*), min(queue_id), max(queue_id) INTO v_found, v_low, v_high FROM {schema}.dispatch WHERE run_id = ANY (p_ids);
    IF v_found = cardinality(p_ids) AND v_low = v_high THEN
        RETURN QUERY SELECT * FROM {schema}.lease_and_refill_v1(p_ids, ARRAY[v_low], p_lease, p_worker, v_now, true, true);
        RETURN;
    END IF;
    v_ended := ARRAY(SELECT o.run_id FROM {schema}.outcome o
                     WHERE o.run_id = ANY (p_ids) AND o.run_id >= p_ids[1] AND o.run_id <= p_ids[cardinality(p_ids)]);
    IF cardinality(v_ended) > 0 THEN
        RETURN QUERY SELECT c.* FROM unnest(v_ended) i
        CROSS JOIN LATERAL {schema}.effect_as_claim_v1(('refusal', 0, i, 'terminal', NULL, NULL, NULL, NULL, NULL, NULL)::{schema}.effect) c;
        p_ids := ARRAY(SELECT unnest(p_ids) EXCEPT SELECT unnest(v_ended) ORDER BY 1);
        IF cardinality(p_ids) = 0 THEN
            RETURN;
        END IF;
    END IF;
    SELECT array_agg(i ORDER BY i) FILTER (WHERE d.run_id IS NOT NULL), array_agg(i) FILTER (WHERE d.run_id IS NULL)
    INTO v_ids, v_missing
    FROM (SELECT DISTINCT unnest(p_ids) AS i) x
    LEFT JOIN LATERAL (SELECT y.run_id FROM {schema}.dispatch y WHERE y.run_id = x.i OFFSET 0) d ON true;
    IF v_missing IS NOT NULL THEN
        SELECT array_agg(e) INTO v_woken FROM {schema}.wake_runs_v1(v_missing, v_now) e;
        IF p_own_only THEN
            v_woken := {schema}.send_picked_v1(v_woken, p_ids);
        END IF;
        IF v_ids IS NOT NULL THEN
            PERFORM {schema}.counter_shard_v1();
            -- Tenants may be locked now, which come after dispatch rows in the lock order: so wait for none. One that somebody holds
            -- gets another wakeup.
            SELECT array_agg(x.run_id) INTO v_mine
            FROM (SELECT d.run_id FROM {schema}.dispatch d WHERE d.run_id = ANY (v_ids) ORDER BY d.run_id FOR UPDATE SKIP LOCKED) x;
            RETURN QUERY
            SELECT c.*
            FROM (SELECT unnest(v_ids) EXCEPT SELECT unnest(v_mine) EXCEPT SELECT e.run_id FROM unnest(v_woken) e) i(id)
            CROSS JOIN LATERAL (SELECT x.* FROM {schema}.dispatch x WHERE x.run_id = i.id OFFSET 0) d
            CROSS JOIN LATERAL (SELECT x.tenant, x.concurrency_key FROM {schema}.run x WHERE x.run_id = d.run_id OFFSET 0) r
            CROSS JOIN LATERAL (SELECT x.name FROM {schema}.queue x WHERE x.queue_id = d.queue_id OFFSET 0) q
            CROSS JOIN LATERAL {schema}.effect_as_claim_v1(('wakeup', 0, d.run_id, NULL, q.name, r.tenant, r.concurrency_key, d.due_at, NULL,
                                                        NULL)::{schema}.effect) c;
            v_ids := v_mine;
        END IF;
        SELECT array_agg(DISTINCT i ORDER BY i) INTO v_ids
        FROM (SELECT unnest(v_ids) UNION ALL SELECT e.run_id FROM unnest(v_woken) e WHERE e.kind = 'picked') x(i);
        RETURN QUERY SELECT c.* FROM unnest(v_woken) e CROSS JOIN LATERAL {schema}.effect_as_claim_v1(e) c WHERE e.kind NOT IN ('picked', 'expired');
        RETURN QUERY SELECT * FROM {schema}.expired_claims_v1(v_woken);
    END IF;
    IF v_ids IS NOT NULL THEN
        v_queues := ARRAY(SELECT DISTINCT queue_id FROM {schema}.dispatch WHERE run_id = ANY (v_ids) ORDER BY 1);
        RETURN QUERY SELECT * FROM {schema}.lease_and_refill_v1(v_ids, v_queues, p_lease, p_worker, v_now, v_missing IS NULL, true);
    END IF;
END $$;

-- Lease rows queue by queue, then fill the windows that claims have opened. p_waits, p_tells: see lease_throttled_v1.
CREATE FUNCTION {schema}.lease_and_refill_v1(
    p_ids uuid[], p_queue_ids int[], p_lease interval, p_worker text, p_now timestamptz, p_waits boolean, p_tells boolean)
RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
DECLARE v_queue int; v_ids uuid[] := p_ids;
BEGIN
    -- Before the dispatch rows, which others wait for.
    PERFORM {schema}.counter_shard_v1();
    FOREACH v_queue IN ARRAY p_queue_ids LOOP
        IF cardinality(p_queue_ids) > 1 THEN
            v_ids := ARRAY(SELECT run_id FROM {schema}.dispatch WHERE run_id = ANY (p_ids) AND queue_id = v_queue ORDER BY run_id);
            CONTINUE WHEN cardinality(v_ids) = 0;
        END IF;
        RETURN QUERY SELECT * FROM {schema}.lease_dispatched_v1(v_queue, v_ids, p_lease, p_worker, p_now, false, p_waits, p_tells);
    END LOOP;
    FOREACH v_queue IN ARRAY p_queue_ids LOOP
        IF {schema}.has_ready_v1(v_queue) THEN
            RETURN QUERY SELECT c.* FROM {schema}.refill_window_v1(v_queue, p_now) e CROSS JOIN LATERAL {schema}.effect_as_claim_v1(e) c;
        END IF;
    END LOOP;
END $$;

-- Let looks for the oldest dispatch rows begin shortly before those that were found first; shortly, as transactions that began earlier
-- may commit later. p_whole: found from the very beginning, so a floor above them was too high. Waits for nobody.
CREATE FUNCTION {schema}.move_floor_v1(p_queue_ids int[], p_seqs bigint[], p_whole boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_whole THEN
        DELETE FROM {schema}.dispatch_floor WHERE ctid = ANY (ARRAY(
            SELECT f.ctid FROM unnest(p_queue_ids, p_seqs) u(queue_id, seq) CROSS JOIN LATERAL (
                SELECT x.ctid FROM {schema}.dispatch_floor x WHERE x.queue_id = u.queue_id AND x.dispatch_seq > u.seq FOR UPDATE SKIP LOCKED) f));
        -- Only the greatest is read.
        DELETE FROM {schema}.dispatch_floor WHERE ctid = ANY (ARRAY(
            SELECT f.ctid FROM (SELECT DISTINCT unnest(p_queue_ids) AS queue_id) u CROSS JOIN LATERAL (
                SELECT x.ctid FROM {schema}.dispatch_floor x
                WHERE x.queue_id = u.queue_id
                  AND x.dispatch_seq < (SELECT max(y.dispatch_seq) FROM {schema}.dispatch_floor y WHERE y.queue_id = u.queue_id)
                LIMIT 1000 FOR UPDATE SKIP LOCKED) f));
    END IF;
    INSERT INTO {schema}.dispatch_floor (queue_id, dispatch_seq)
    SELECT u.queue_id, min(u.seq) - 256 FROM unnest(p_queue_ids, p_seqs) u(queue_id, seq) GROUP BY 1 HAVING min(u.seq) > 256 ORDER BY 1
    ON CONFLICT DO NOTHING;
END $$;

-- Inline continuation: the oldest unclaimed dispatch rows of these queues, without a trip through the transport. On throttled queues
-- those whose time has come, by that time.
CREATE FUNCTION {schema}.claim_oldest_v1(p_queues text[], p_limit int, p_lease interval, p_worker text) RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
DECLARE
    v_ids uuid[]; v_queue_ids int[]; v_each int[]; v_seqs bigint[]; v_whole boolean := random() < 0.004; v_now timestamptz := clock_timestamp();
BEGIN
    -- Before the dispatch rows, which others wait for.
    PERFORM {schema}.counter_shard_v1();
    -- From the floor, where there is one; where nothing is found, and now and then anyway, from the very beginning.
    FOR i IN 1..2 LOOP
        SELECT array_agg(x.run_id ORDER BY x.run_id), array_agg(DISTINCT x.queue_id), array_agg(x.queue_id), array_agg(x.dispatch_seq)
        INTO v_ids, v_queue_ids, v_each, v_seqs
        FROM (SELECT y.* FROM (
                  SELECT d.run_id, q.queue_id, d.dispatch_seq FROM {schema}.queue q CROSS JOIN LATERAL (
                      SELECT run_id, dispatch_seq FROM {schema}.dispatch d
                      WHERE d.queue_id = q.queue_id AND d.dispatch_seq >= CASE WHEN v_whole THEN 0 ELSE coalesce((
                          SELECT f.dispatch_seq FROM {schema}.dispatch_floor f WHERE f.queue_id = q.queue_id
                          ORDER BY f.dispatch_seq DESC LIMIT 1), 0) END
                      ORDER BY dispatch_seq LIMIT p_limit FOR UPDATE SKIP LOCKED) d
                  WHERE q.name = ANY (p_queues) AND q.throttle_step IS NULL
                  UNION ALL
                  SELECT d.run_id, q.queue_id, d.dispatch_seq FROM {schema}.queue q CROSS JOIN LATERAL (
                      SELECT run_id, dispatch_seq FROM {schema}.dispatch d
                      WHERE d.queue_id = q.queue_id AND d.start_at <= v_now ORDER BY d.start_at LIMIT p_limit FOR UPDATE SKIP LOCKED) d
                  WHERE q.name = ANY (p_queues) AND q.throttle_step IS NOT NULL) y
              ORDER BY y.dispatch_seq LIMIT p_limit) x;
        EXIT WHEN v_whole OR v_ids IS NOT NULL;
        v_whole := true;
    END LOOP;
    IF v_ids IS NOT NULL AND (v_whole OR random() < 0.05) THEN
        PERFORM {schema}.move_floor_v1(v_each, v_seqs, v_whole);
    END IF;
    IF v_ids IS NOT NULL THEN
        RETURN QUERY SELECT * FROM {schema}.lease_and_refill_v1(v_ids, v_queue_ids, p_lease, p_worker, clock_timestamp(), false, false);
    END IF;
END $$;
