-- Choosing who gets the next slot and wakeup. Every caller holds the queue's shared advisory lock (enter_queue_v1).
-- Lock order of every transaction: rows of schedule (0013); idempotency keys, then singleton keys with their successors, in order (0011_singleton); a counter
-- shard; then queue by queue in id order: rows of timer and inbox; queue row (only with total_limit); partitions by id; dispatch and
-- lease rows by run id; tenants by id; then others with SKIP LOCKED only. Counters never wait.

-- No statistics may turn a loop round, since hash and merge joins are off (0008) and a loop that is turned round is quadratic. So a row
-- is looked up by LATERAL (... OFFSET 0) or a subquery, which is planned apart, after what it refers to. What is written is found by
-- = ANY (ARRAY[x.id]): for = x.id the planner may walk the index from end to end and x once for each entry, for this it cannot.

-- A time-ordered id (UUIDv7): 48 bits of milliseconds, 12 bits of sub-millisecond plus place in the batch, 60 bits at random. They make
-- ids different, not secret, so they are of the session's own generator: a look into the system's costs some servers more than all the rest.
-- In two halves, as one random() has 52 bits.
CREATE FUNCTION {schema}.new_run_id_v1(p_at timestamptz, p_ord int) RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (overlay(lpad(to_hex((date_part('epoch', p_at) * 1000000)::bigint * 512 / 125 + p_ord), 15, '0') PLACING '7' FROM 13 FOR 0)
            || '8' || lpad(to_hex((random() * 1073741823)::bigint << 30 | (random() * 1073741823)::bigint), 15, '0'))::uuid
$$;

-- The counter shard of this transaction: one that no other open transaction uses, so that nobody waits for a counter while holding
-- what others wait for. Only beyond 32 writers at once is a shard waited for; so it is the first thing that a transaction takes after
-- its keys (enter_queue_v1). Whoever waits for one holds keys at most, and whoever has one waits for no key: a key may be held by a
-- caller's own open transaction, and 32 who wait for that with a shard each would keep everybody from counting.
CREATE FUNCTION {schema}.counter_shard_v1() RETURNS int
LANGUAGE plpgsql AS $$
DECLARE v_first int := pg_backend_pid() % 32; v_shard int := v_first;
BEGIN
    LOOP
        IF pg_try_advisory_xact_lock(1919317613, v_shard) THEN
            RETURN v_shard;
        END IF;
        v_shard := (v_shard + 1) % 32;
        EXIT WHEN v_shard = v_first;
    END LOOP;
    PERFORM pg_advisory_xact_lock(1919317613, v_first);
    RETURN v_first;
END $$;

-- Add to a queue's counters in this transaction's shard. One in 64 begins the row's next turn. The shard's share of the window's room
-- follows what it dispatches and what is claimed in it; p_share is a new one, good for a second from p_now (take_room_v1).
CREATE FUNCTION {schema}.count_v1(
    p_queue_id int, p_shard int, p_waiting bigint, p_scheduled bigint, p_dispatched bigint, p_running bigint, p_served bigint DEFAULT NULL,
    p_share int DEFAULT NULL, p_now timestamptz DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.queue_counter c
    SET waiting = c.waiting + p_waiting, scheduled = c.scheduled + p_scheduled, dispatched = c.dispatched + p_dispatched,
        running = c.running + p_running, vt = greatest(c.vt, p_served), turn = c.turn + CASE WHEN random() < 0.015625 THEN 1 ELSE 0 END,
        room = coalesce(p_share, greatest(-1000000000, least(1000000000, c.room - p_dispatched))),
        room_until = coalesce(p_now + interval '1 second', c.room_until)
    WHERE c.queue_id = p_queue_id AND c.shard = p_shard
      AND c.turn = (SELECT max(x.turn) FROM {schema}.queue_counter x WHERE x.queue_id = p_queue_id AND x.shard = p_shard);
END $$;

-- Shared among all that move runs of the queue; a change of policy or a pause takes it alone. Then the policy may be read.
CREATE FUNCTION {schema}.enter_queue_v1(p_queue_id int) RETURNS {schema}.queue
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue;
BEGIN
    PERFORM {schema}.counter_shard_v1();
    PERFORM pg_advisory_xact_lock_shared(1919317612, p_queue_id);
    SELECT * INTO q FROM {schema}.queue WHERE queue_id = p_queue_id;
    IF q.total_limit IS NOT NULL THEN
        SELECT * INTO q FROM {schema}.queue WHERE queue_id = p_queue_id FOR NO KEY UPDATE;
    END IF;
    RETURN q;
END $$;

-- Give motions their partitions, making rows for keys not seen before. Inserts in key order, before any partition is locked: once a
-- queue and transaction, as a second call would start over in the order.
CREATE FUNCTION {schema}.resolve_partitions_v1(p_queue_id int, p_runs {schema}.motion[]) RETURNS {schema}.motion[]
LANGUAGE plpgsql AS $$
DECLARE v_runs {schema}.motion[];
BEGIN
    IF NOT EXISTS (SELECT 1 FROM unnest(p_runs) m WHERE m.partition_id IS NULL) THEN
        RETURN p_runs;
    END IF;
    INSERT INTO {schema}.tenant (queue_id, name)
    SELECT DISTINCT p_queue_id, r.tenant
    FROM unnest(p_runs) m CROSS JOIN LATERAL (SELECT x.tenant FROM {schema}.run x WHERE x.run_id = m.run_id OFFSET 0) r
    WHERE m.partition_id IS NULL AND r.tenant <> ''
      AND NOT EXISTS (SELECT 1 FROM {schema}.tenant t WHERE t.queue_id = p_queue_id AND t.name = r.tenant OFFSET 0)
    ORDER BY 2
    ON CONFLICT DO NOTHING;
    INSERT INTO {schema}.partition (queue_id, tenant_id, tenant, concurrency_key, tenant_paused_at, weight)
    SELECT p_queue_id, t.tenant_id, r.tenant, r.concurrency_key, t.paused_at,
           coalesce((SELECT k.weight FROM {schema}.tenant k WHERE r.tenant IS NULL AND k.queue_id = p_queue_id AND k.name = r.concurrency_key), 1)
    FROM (SELECT DISTINCT x.tenant, x.concurrency_key
          FROM unnest(p_runs) m
          CROSS JOIN LATERAL (SELECT x.tenant, x.concurrency_key FROM {schema}.run x WHERE x.run_id = m.run_id OFFSET 0) x
          WHERE m.partition_id IS NULL) r
    LEFT JOIN LATERAL (
        SELECT x.tenant_id, x.paused_at FROM {schema}.tenant x WHERE x.queue_id = p_queue_id AND x.name = r.tenant OFFSET 0) t ON true
    WHERE NOT EXISTS (SELECT 1 FROM {schema}.partition p WHERE p.queue_id = p_queue_id AND coalesce(p.tenant, '') = coalesce(r.tenant, '')
                      AND coalesce(p.concurrency_key, '') = coalesce(r.concurrency_key, '') OFFSET 0)
    ORDER BY 3, 4
    ON CONFLICT DO NOTHING;
    SELECT array_agg((m.run_id, coalesce(m.partition_id, (
                          SELECT p.partition_id FROM {schema}.partition p WHERE p.queue_id = p_queue_id
                          AND coalesce(p.tenant, '') = coalesce(r.tenant, '')
                          AND coalesce(p.concurrency_key, '') = coalesce(r.concurrency_key, ''))),
                      m.due_at, m.priority, m.status, m.attempt, m.failures, m.seq, m.expiries)::{schema}.motion)
    INTO v_runs
    FROM unnest(p_runs) m LEFT JOIN LATERAL (
        SELECT x.tenant, x.concurrency_key FROM {schema}.run x WHERE m.partition_id IS NULL AND x.run_id = m.run_id OFFSET 0) r ON true;
    RETURN v_runs;
END $$;

CREATE FUNCTION {schema}.lock_partitions_v1(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM {schema}.partition WHERE partition_id = ANY (p_ids) ORDER BY partition_id FOR NO KEY UPDATE;
END $$;

-- Put runs into the order of their partitions, whose rows the caller has locked. States change in grant_slots_v1.
CREATE FUNCTION {schema}.enqueue_runs_v1(p_queue_id int, p_runs {schema}.motion[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_shard int := {schema}.counter_shard_v1();
BEGIN
    INSERT INTO {schema}.waiting (partition_id, score, run_id, queue_id, due_at, priority, status, attempt, failures, seq, expiries)
    SELECT m.partition_id, m.due_at - make_interval(secs => m.priority), m.run_id, p_queue_id, m.due_at, m.priority, m.status,
           m.attempt, m.failures, m.seq, m.expiries
    FROM unnest(p_runs) m;
    UPDATE {schema}.partition p
    SET waiting = p.waiting + x.n, head = CASE WHEN p.waiting = 0 THEN x.head ELSE least(p.head, x.head) END
    FROM (SELECT m.partition_id, count(*) AS n, min(m.due_at - make_interval(secs => m.priority)) AS head
          FROM unnest(p_runs) m GROUP BY 1) x
    WHERE p.partition_id = ANY (ARRAY[x.partition_id]);
    PERFORM {schema}.count_v1(p_queue_id, v_shard, cardinality(p_runs), 0, 0, 0);
END $$;

-- Take over what joined and deferred transactions recorded, their partitions still to be resolved. Rows of transactions still open
-- are passed over.
CREATE FUNCTION {schema}.take_recorded_v1(p_queue_id int, p_limit int) RETURNS {schema}.motion[]
LANGUAGE plpgsql AS $$
DECLARE v_ids uuid[]; v_runs {schema}.motion[];
BEGIN
    WITH d AS (
        DELETE FROM {schema}.inbox i USING (
            SELECT run_id FROM {schema}.inbox WHERE queue_id = p_queue_id LIMIT p_limit FOR UPDATE SKIP LOCKED) x
        WHERE i.run_id = ANY (ARRAY[x.run_id]) RETURNING i.run_id)
    SELECT array_agg(run_id) INTO v_ids FROM d;
    IF v_ids IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT array_agg((r.run_id, NULL, r.run_at, r.priority, 'queued', 0, 0, 1, 0)::{schema}.motion) INTO v_runs
    FROM unnest(v_ids) i(id) CROSS JOIN LATERAL (SELECT x.run_id, x.run_at, x.priority FROM {schema}.run x WHERE x.run_id = i.id OFFSET 0) r;
    RETURN v_runs;
END $$;

-- The counters of a queue, each shard by its last turn, so that no version of an earlier one is visited.
CREATE FUNCTION {schema}.counters_v1(p_queue_id int) RETURNS SETOF {schema}.queue_counter
LANGUAGE sql STABLE AS $$
    SELECT c.* FROM generate_series(0, 31) s CROSS JOIN LATERAL (
        SELECT * FROM {schema}.queue_counter x WHERE x.queue_id = p_queue_id AND x.shard = s ORDER BY x.turn DESC LIMIT 1) c
$$;

-- Where newcomers start: the least virtual time of those waiting, else the last one served. No credit for having slept. Not an SQL
-- function, which Postgres before 18 plans anew in every transaction.
CREATE FUNCTION {schema}.virtual_time_v1(p_queue_id int) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(
        least((SELECT vt FROM {schema}.tenant WHERE queue_id = p_queue_id AND ready ORDER BY vt LIMIT 1),
              (SELECT vt FROM {schema}.partition WHERE queue_id = p_queue_id AND state = 'r' AND tenant_id IS NULL ORDER BY vt LIMIT 1)),
        (SELECT max(c.vt) FROM {schema}.counters_v1(p_queue_id) c));
END $$;

-- A count of a partition that promised more than there is would be a bug; the rows are the truth, so that it cannot last.
CREATE FUNCTION {schema}.recount_waiting_v1(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.partition p SET waiting = x.n, head = '-infinity', state = CASE WHEN x.n = 0 THEN 'e' ELSE p.state END
    FROM (SELECT i.id, (SELECT count(*) FROM {schema}.waiting w WHERE w.partition_id = i.id) AS n FROM unnest(p_ids) i(id)) x
    WHERE p.partition_id = ANY (ARRAY[x.id]) AND p.waiting <> x.n;
END $$;

-- Dispatch the first n runs of each given partition, whose rows the caller has locked: take them out of waiting in a
-- statement after the locks, give them dispatch rows and events, bring the partitions' counts, order and state up to date.
-- p_ranks: of each partition an array as text, the virtual time of each pick; NULL: they take turns. Dispatched in that order, at equal
-- times partitions without a tenant first, then older tenants and partitions.
-- p_served: the queue's virtual time after it, for newcomers; p_vts of partitions with a tenant are the tenant's own time.
CREATE FUNCTION {schema}.dispatch_runs_v1(
    q {schema}.queue, p_ids bigint[], p_counts int[], p_vts bigint[], p_ranks text[],
    p_served bigint, p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_bounded boolean := q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL; v_taken int; v_shard int := {schema}.counter_shard_v1();
BEGIN
    IF q.polled_until > p_now THEN
        PERFORM {schema}.tell_pollers_v1(q.queue_id, q.name, q.throttle_step IS NOT NULL);
    END IF;
    RETURN QUERY
    WITH taken AS (
        DELETE FROM {schema}.waiting w USING (
            SELECT x.partition_id, x.score, x.run_id, p.tenant_id, p.tenant, p.concurrency_key, p.slot_seq, p.occupied, u.vt AS base_vt, u.ranks,
                   p.throttle_clock, p.reserved
            FROM unnest(p_ids, p_counts, p_vts, p_ranks) u(partition_id, n, vt, ranks)
            CROSS JOIN LATERAL (
                SELECT p.tenant_id, p.tenant, p.concurrency_key, p.slot_seq, p.occupied, p.head, p.throttle_clock, p.reserved
                FROM {schema}.partition p WHERE p.partition_id = u.partition_id OFFSET 0) p
            CROSS JOIN LATERAL (
                SELECT * FROM {schema}.waiting x WHERE x.partition_id = u.partition_id AND x.score >= p.head
                ORDER BY x.score, x.run_id LIMIT u.n) x) x
        WHERE w.run_id = ANY (ARRAY[x.run_id])
        RETURNING w.*, x.tenant_id, x.tenant, x.concurrency_key, x.slot_seq, x.occupied, x.base_vt, x.ranks, x.throttle_clock, x.reserved),
    numbered AS MATERIALIZED (
        SELECT y.*, row_number() OVER (ORDER BY coalesce((y.ranks::bigint[])[y.nth], y.nth), y.tenant_id NULLS FIRST, y.partition_id, y.nth) AS place,
               CASE WHEN q.throttle_step IS NOT NULL THEN
                   greatest(p_now, {schema}.next_start_v1(q, y.throttle_clock, y.reserved, y.nth - 1, p_now)) END AS start_at
        FROM (SELECT x.*, row_number() OVER (PARTITION BY x.partition_id ORDER BY x.score, x.run_id) AS nth FROM taken x) y),
    made AS (
        INSERT INTO {schema}.dispatch (run_id, queue_id, partition_id, due_at, priority, status, attempt, failures, seq, expiries,
                                   dispatched_at, start_at, expires_at, publish_claimed_at)
        SELECT run_id, q.queue_id, partition_id, due_at, priority, status, attempt, failures, seq + 1, expiries, p_now, start_at,
               coalesce(start_at, p_now)
               + least(q.dispatch_timeout * power(2, least(expiries, 10)), greatest(q.dispatch_timeout, interval '1 hour')), p_now
        FROM numbered ORDER BY place),
    ev AS (
        INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied, queue_slot_seq, queue_occupied)
        SELECT run_id, seq + 1, 'run.dispatched', p_now, attempt,
               CASE WHEN v_bounded THEN partition_id END, CASE WHEN v_bounded THEN slot_seq + nth END, CASE WHEN v_bounded THEN occupied + nth END,
               CASE WHEN q.total_limit IS NOT NULL THEN q.slot_seq + place END,
               CASE WHEN q.total_limit IS NOT NULL THEN q.occupied + place END
        FROM numbered),
    upd AS (
        UPDATE {schema}.partition p
        SET waiting = p.waiting - x.n,
            occupied = p.occupied + CASE WHEN v_bounded THEN x.n ELSE 0 END,
            slot_seq = p.slot_seq + CASE WHEN v_bounded THEN x.n ELSE 0 END,
            head = x.head,
            vt = x.vt,
            throttle_clock = CASE WHEN x.base IS NULL THEN p.throttle_clock ELSE x.base END,
            reserved = p.reserved + CASE WHEN x.base IS NULL THEN 0 ELSE x.n END,
            ready_at = {schema}.throttled_until_v1(q, x.base, p.reserved + x.n, p_now),
            hinted_at = NULL,
            state = CASE WHEN p.waiting - x.n <= 0 THEN 'e'
                         WHEN p.occupied + x.n >= q.concurrency_limit THEN 'b'
                         WHEN {schema}.throttled_until_v1(q, x.base, p.reserved + x.n, p_now) IS NOT NULL THEN 't' ELSE 'r' END
        FROM (SELECT partition_id, count(*)::int AS n, max(score) AS head,
                     max(base_vt) AS vt, max({schema}.throttle_base_v1(q, throttle_clock, reserved, p_now)) AS base FROM numbered GROUP BY 1) x
        WHERE p.partition_id = ANY (ARRAY[x.partition_id]))
    SELECT 'wakeup', place::int, run_id, NULL::text, q.name, tenant, concurrency_key, due_at,
           CASE WHEN start_at > p_now THEN start_at - p_now END, NULL::json
    FROM numbered ORDER BY place;
    GET DIAGNOSTICS v_taken = ROW_COUNT;
    IF v_taken < (SELECT sum(n) FROM unnest(p_counts) n) THEN
        PERFORM {schema}.recount_waiting_v1(p_ids);
    END IF;
    PERFORM {schema}.count_v1(q.queue_id, v_shard, -v_taken, 0, v_taken, 0, p_served);
    IF q.total_limit IS NOT NULL THEN
        UPDATE {schema}.queue SET occupied = occupied + v_taken, slot_seq = slot_seq + v_taken WHERE queue_id = q.queue_id;
    END IF;
END $$;

-- Choose n runs among all ready partitions: first among tenants (a partition without one competes as its own), then among a
-- tenant's partitions, by virtual time. Rows are locked with SKIP LOCKED in one statement and read in the next.
CREATE FUNCTION {schema}.dispatch_fairly_v1(q {schema}.queue, p_room int, p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    v_room int := p_room; v_pass int; v_taken int; v_flagged int;
    v_tenants bigint[]; v_quotas int[]; v_tenant_ranks bigint[]; v_served bigint; v_tenant_served bigint;
    v_ids bigint[]; v_counts int[]; v_vts bigint[]; v_ranks text[]; v_tenant_gaps bigint[]; v_served_ids bigint[];
    v_passed bigint[];
BEGIN
    IF q.throttle_step IS NOT NULL AND v_room > 0 THEN
        SELECT w.asleep, w.passed INTO v_served_ids, v_passed FROM {schema}.wake_throttled_v1(q, v_room, p_now) w;
    END IF;
    WHILE v_room > 0 LOOP
        v_pass := least(v_room, 100);
        WITH t AS MATERIALIZED (
            SELECT tenant_id AS id, vt, weight FROM {schema}.tenant
            WHERE queue_id = q.queue_id AND ready ORDER BY vt, tenant_id LIMIT v_pass FOR NO KEY UPDATE SKIP LOCKED),
        s AS MATERIALIZED (
            SELECT partition_id AS id, vt, weight, least(waiting, coalesce(q.concurrency_limit - occupied, waiting),
                                                         {schema}.throttle_room_v1(q, throttle_clock, reserved, 1, p_now)) AS available
            FROM {schema}.partition
            WHERE queue_id = q.queue_id AND state = 'r' AND tenant_id IS NULL ORDER BY vt, partition_id LIMIT v_pass
            FOR NO KEY UPDATE SKIP LOCKED),
        top AS (
            SELECT x.*, 1000000 / weight AS step, max(vt) OVER () AS last_vt, count(*) OVER () AS nodes
            FROM (SELECT true AS is_tenant, id, vt, weight, v_pass AS available FROM t
                  UNION ALL SELECT false, id, vt, weight, available FROM s ORDER BY vt, is_tenant, id LIMIT v_pass) x),
        slot AS (
            SELECT is_tenant, id, vt, step, vt + j * step AS key
            FROM top CROSS JOIN LATERAL generate_series(0, least(available, v_pass,
                 CASE WHEN nodes = v_pass THEN (last_vt - vt) / step + 1 ELSE v_pass END) - 1) j
            ORDER BY key, is_tenant, id LIMIT v_pass),
        quota AS (
            SELECT is_tenant, id, count(*)::int AS n, vt + count(*) * step AS vt, array_agg(key ORDER BY key) AS ranks, step AS gap FROM slot GROUP BY is_tenant, id, vt, step)
        SELECT array_agg(id) FILTER (WHERE is_tenant), array_agg(n) FILTER (WHERE is_tenant),
               array_agg(ranks[1]) FILTER (WHERE is_tenant), array_agg(gap) FILTER (WHERE is_tenant),
               array_agg(id) FILTER (WHERE NOT is_tenant), array_agg(n) FILTER (WHERE NOT is_tenant),
               array_agg(vt) FILTER (WHERE NOT is_tenant), array_agg(ranks::text) FILTER (WHERE NOT is_tenant),
               max(vt) FILTER (WHERE NOT is_tenant)
        INTO v_tenants, v_quotas, v_tenant_ranks, v_tenant_gaps, v_ids, v_counts, v_vts, v_ranks, v_served
        FROM quota;
        v_flagged := 0;
        IF v_tenants IS NOT NULL THEN
            WITH inner_slot AS (
                SELECT u.tenant_id, u.rank, u.gap, u.quota, p.partition_id, p.vt, p.vt + j * 1000000::bigint AS key
                FROM unnest(v_tenants, v_quotas, v_tenant_ranks, v_tenant_gaps) u(tenant_id, quota, rank, gap)
                CROSS JOIN LATERAL (
                    SELECT partition_id, vt, least(waiting, coalesce(q.concurrency_limit - occupied, waiting),
                                                   {schema}.throttle_room_v1(q, throttle_clock, reserved, 1, p_now)) AS available
                    FROM {schema}.partition WHERE tenant_id = u.tenant_id AND state = 'r' ORDER BY vt, partition_id LIMIT u.quota
                    FOR NO KEY UPDATE SKIP LOCKED) p
                CROSS JOIN LATERAL generate_series(0, least(p.available, u.quota) - 1) j),
            chosen AS (
                SELECT * FROM (SELECT s.*, row_number() OVER (PARTITION BY tenant_id ORDER BY key, partition_id) AS place FROM inner_slot s) x
                WHERE place <= quota),
            picked AS (
                SELECT tenant_id, partition_id, count(*)::int AS n, vt + count(*) * 1000000 AS vt,
                       array_agg(rank + gap * (place - 1) ORDER BY place)::text AS ranks, max(key) AS start
                FROM chosen GROUP BY tenant_id, partition_id, vt, rank, chosen.gap),
            charged AS (
                UPDATE {schema}.tenant t SET vt = t.vt + x.n * (1000000 / t.weight), floor = greatest(t.floor, x.start)
                FROM (SELECT tenant_id, sum(n) AS n, max(start) AS start FROM picked GROUP BY 1) x
                WHERE t.tenant_id = ANY (ARRAY[x.tenant_id])
                RETURNING t.vt)
            SELECT v_ids || array_agg(partition_id), v_counts || array_agg(n), v_vts || array_agg(vt), v_ranks || array_agg(ranks),
                   (SELECT max(vt) FROM charged)
            INTO v_ids, v_counts, v_vts, v_ranks, v_tenant_served FROM picked;
            v_served := greatest(v_served, v_tenant_served);
        END IF;
        v_taken := 0;
        IF v_ids IS NOT NULL THEN
            RETURN QUERY SELECT * FROM {schema}.dispatch_runs_v1(q, v_ids, v_counts, v_vts, v_ranks, v_served, p_now);
            GET DIAGNOSTICS v_taken = ROW_COUNT;
            q.occupied := q.occupied + v_taken;
            q.slot_seq := q.slot_seq + v_taken;
            v_room := v_room - v_taken;
            v_served_ids := v_served_ids || v_ids;
        END IF;
        IF v_tenants IS NOT NULL THEN
            UPDATE {schema}.tenant t SET ready = false
            WHERE t.tenant_id = ANY (v_tenants)
              AND NOT EXISTS (SELECT 1 FROM {schema}.partition p WHERE p.tenant_id = t.tenant_id AND p.state = 'r' OFFSET 0);
            GET DIAGNOSTICS v_flagged = ROW_COUNT;
        END IF;
        EXIT WHEN v_taken = 0 AND v_flagged = 0;
    END LOOP;
    IF q.throttle_step > q.throttle_ahead / 2 THEN
        RETURN QUERY SELECT * FROM {schema}.hint_throttled_v1(q, v_served_ids, p_now);
    END IF;
    IF cardinality(v_passed) > 0 THEN
        RETURN QUERY SELECT * FROM {schema}.hint_throttled_v1(q, v_passed, p_now, true);
    END IF;
END $$;

-- Whether some partition of the queue could run now, but for the window and total_limit.
-- A probe each, which start cheaper than one statement with all.
CREATE FUNCTION {schema}.has_ready_v1(p_queue_id int) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE v_now timestamptz := clock_timestamp();
BEGIN
    RETURN EXISTS (SELECT 1 FROM {schema}.partition WHERE queue_id = p_queue_id AND state = 'r' AND tenant_id IS NULL)
        OR EXISTS (SELECT 1 FROM {schema}.tenant WHERE queue_id = p_queue_id AND ready)
        OR EXISTS (SELECT 1 FROM {schema}.partition WHERE queue_id = p_queue_id AND state = 't' AND ready_at <= v_now);
END $$;

CREATE FUNCTION {schema}.window_room_v1(q {schema}.queue) RETURNS int
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN q.paused_at IS NOT NULL THEN 0 ELSE
        greatest(0, least(q.dispatch_window - (SELECT sum(c.dispatched) FROM {schema}.counters_v1(q.queue_id) c),
                          q.total_limit - q.occupied))::int END;
END $$;

-- Count runs that are dispatched at once, with what else has changed, if the window has room for them and nobody competes; else answer
-- false. The room of all shards is counted now and then: each takes a 32nd of it then, and lives on that for a second, as it does on what
-- is claimed in it meanwhile. So the window may be exceeded by what others have taken since, at most by once its size.
CREATE FUNCTION {schema}.take_room_v1(
    q {schema}.queue, p_shard int, p_count int, p_now timestamptz, p_waiting int DEFAULT 0, p_running int DEFAULT 0) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE v_room int;
BEGIN
    UPDATE {schema}.queue_counter c
    SET dispatched = c.dispatched + p_count, waiting = c.waiting + p_waiting, running = c.running + p_running, room = c.room - p_count,
        turn = c.turn + CASE WHEN random() < 0.015625 THEN 1 ELSE 0 END
    WHERE c.queue_id = q.queue_id AND c.shard = p_shard
      AND c.turn = (SELECT max(x.turn) FROM {schema}.queue_counter x WHERE x.queue_id = q.queue_id AND x.shard = p_shard)
      AND c.room >= p_count AND c.room_until > p_now
      AND NOT EXISTS (SELECT 1 FROM {schema}.partition WHERE queue_id = q.queue_id AND state = 'r' AND tenant_id IS NULL)
      AND NOT EXISTS (SELECT 1 FROM {schema}.tenant WHERE queue_id = q.queue_id AND ready)
      AND NOT EXISTS (SELECT 1 FROM {schema}.partition WHERE queue_id = q.queue_id AND state = 't' AND ready_at <= p_now);
    IF FOUND THEN
        RETURN true;
    END IF;
    v_room := {schema}.window_room_v1(q) - p_count;
    IF v_room < 0 OR {schema}.has_ready_v1(q.queue_id) THEN
        RETURN false;
    END IF;
    PERFORM {schema}.count_v1(q.queue_id, p_shard, p_waiting, 0, p_count, p_running, p_share => v_room / 32, p_now => p_now);
    RETURN true;
END $$;

-- Bring the order of the touched partitions (locked by the caller) up to date after runs came or slots were freed, and give
-- the free capacity out in the same transaction. Where nobody else competes, a partition's slots go straight to its own runs.
CREATE FUNCTION {schema}.grant_slots_v1(q {schema}.queue, p_touched bigint[], p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_room int := {schema}.window_room_v1(q); v_ids bigint[]; v_counts int[]; v_vts bigint[]; v_demand int; v_blocked boolean; v_tenants bigint[];
BEGIN
    SELECT array_agg(partition_id), array_agg(n), array_agg(vt), sum(n), bool_or(n <= 0 OR is_paused) INTO v_ids, v_counts, v_vts, v_demand, v_blocked
    FROM (SELECT partition_id, vt, least(waiting, coalesce(q.concurrency_limit - occupied, waiting),
                                         {schema}.throttle_room_v1(q, throttle_clock, reserved, 0, p_now)) AS n,
                 paused_at IS NOT NULL OR tenant_paused_at IS NOT NULL AS is_paused
          FROM {schema}.partition WHERE partition_id = ANY (p_touched) AND waiting > 0) x;
    IF NOT v_blocked AND v_demand <= v_room AND q.total_limit IS NULL AND NOT {schema}.has_ready_v1(q.queue_id) THEN
        RETURN QUERY SELECT * FROM {schema}.dispatch_runs_v1(q, v_ids, v_counts, v_vts, NULL, NULL, p_now);
        IF q.throttle_step > q.throttle_ahead / 2 THEN
            RETURN QUERY SELECT * FROM {schema}.hint_throttled_v1(q, v_ids, p_now);
        END IF;
        RETURN;
    END IF;
    -- Sorted, in an order that no index gives, so that every start is known before the first row is written: else each look at who
    -- is ready would walk over the index entries that this statement makes.
    WITH fresh AS MATERIALIZED (
        SELECT x.partition_id, x.becomes, x.until, CASE WHEN x.becomes <> 'r' OR x.tenant_id IS NULL THEN x.vt ELSE greatest(x.vt, coalesce(
                   (SELECT o.vt FROM {schema}.partition o WHERE o.tenant_id = x.tenant_id AND o.state = 'r' ORDER BY o.vt LIMIT 1),
                   (SELECT floor FROM {schema}.tenant t WHERE t.tenant_id = x.tenant_id))) END AS vt
        FROM (SELECT y.*, CASE WHEN waiting = 0 THEN 'e' WHEN paused_at IS NOT NULL OR tenant_paused_at IS NOT NULL THEN 'p'
                               WHEN occupied >= q.concurrency_limit THEN 'b' WHEN y.until IS NOT NULL THEN 't' ELSE 'r' END::"char" AS becomes
              FROM (SELECT *, {schema}.throttled_until_v1(q, throttle_clock, reserved, p_now) AS until
                    FROM {schema}.partition WHERE partition_id = ANY (p_touched)) y) x
        WHERE x.becomes <> x.state OR x.becomes = 't' AND x.until < x.ready_at ORDER BY x.partition_id + 0),
    moved AS (
        UPDATE {schema}.partition p
        SET state = f.becomes,
            ready_at = f.until,
            hinted_at = NULL,
            vt = CASE WHEN f.becomes <> 'r' OR p.tenant_id IS NOT NULL THEN f.vt
                      ELSE greatest(f.vt, (SELECT {schema}.virtual_time_v1(q.queue_id))) END
        FROM fresh f WHERE p.partition_id = ANY (ARRAY[f.partition_id])
        RETURNING p.tenant_id, p.state)
    SELECT array_agg(DISTINCT tenant_id) INTO v_tenants FROM moved WHERE state = 'r' AND tenant_id IS NOT NULL;
    IF v_tenants IS NOT NULL THEN
        PERFORM 1 FROM {schema}.tenant WHERE tenant_id = ANY (v_tenants) ORDER BY tenant_id FOR NO KEY UPDATE;
        UPDATE {schema}.tenant t SET ready = true, vt = greatest(t.vt, (SELECT {schema}.virtual_time_v1(q.queue_id)))
        WHERE t.tenant_id = ANY (v_tenants) AND NOT t.ready;
    END IF;
    IF v_room > 0 THEN
        RETURN QUERY SELECT * FROM {schema}.dispatch_fairly_v1(q, v_room, p_now);
    END IF;
    IF q.throttle_step > q.throttle_ahead / 2 THEN
        RETURN QUERY SELECT * FROM {schema}.hint_throttled_v1(q, p_touched, p_now);
    END IF;
END $$;

-- Put runs in order and dispatch what has capacity. The caller has entered the queue and holds no partition.
CREATE FUNCTION {schema}.ready_runs_v1(q {schema}.queue, p_runs {schema}.motion[], p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_touched bigint[];
BEGIN
    IF p_runs IS NULL THEN
        IF {schema}.has_ready_v1(q.queue_id) THEN
            RETURN QUERY SELECT * FROM {schema}.dispatch_fairly_v1(q, {schema}.window_room_v1(q), p_now);
        END IF;
        RETURN;
    END IF;
    SELECT array_agg(DISTINCT partition_id) INTO v_touched FROM unnest(p_runs);
    PERFORM {schema}.lock_partitions_v1(v_touched);
    PERFORM {schema}.enqueue_runs_v1(q.queue_id, p_runs);
    RETURN QUERY SELECT * FROM {schema}.grant_slots_v1(q, v_touched, p_now);
END $$;

-- Fold what was recorded and give out what is free: after a joined transaction, by the tick, or by whoever finds room.
CREATE FUNCTION {schema}.dispatch_queue_v1(p_queue text, p_limit int) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue; v_runs {schema}.motion[];
BEGIN
    SELECT * INTO q FROM {schema}.queue WHERE name = p_queue;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    q := {schema}.enter_queue_v1(q.queue_id);
    v_runs := {schema}.resolve_partitions_v1(q.queue_id, {schema}.take_recorded_v1(q.queue_id, p_limit));
    RETURN QUERY SELECT * FROM {schema}.ready_runs_v1(q, v_runs, clock_timestamp());
END $$;
