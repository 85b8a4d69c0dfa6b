-- At most limit + burst starts of a partition in any period. Reasons and proof: docs/decisions/0004-throttle.md.
--
-- A start is a claim, which the clock of its partition permits: throttle_clock, raised by throttle_step at each start, under the
-- partition's lock. Dispatch only plans: it gives a row its start_at from the clock and the count of rows that are reserved before it.

-- What a Throttle means: the time between starts, what may be started early on top (burst), how late a start may be without costing
-- rate (slack), and how far ahead dispatch reserves. All NULL without a throttle. With a total_limit no slot is held ahead of its time.
CREATE FUNCTION {schema}.throttle_terms_v1(p_limit int, p_period interval, p_burst int, p_total_limit int,
                                           OUT step interval, OUT burst interval, OUT slack interval, OUT ahead interval)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE v_period bigint := round(extract(epoch FROM p_period) * 1000000); v_slack bigint := least(v_period / 40, 250000);
BEGIN
    IF p_limit IS NOT NULL THEN
        -- Up, so that no rounding adds a start. Of microseconds only: a day would be as long as the session's time zone has it.
        step := interval '1 microsecond' * ((v_period + v_slack + p_limit - 1) / p_limit);
        burst := step * p_burst;
        slack := interval '1 microsecond' * v_slack;
        ahead := CASE WHEN p_total_limit IS NULL THEN interval '2 seconds' ELSE interval '0' END;
    END IF;
END $$;

-- These four are written into the statements that call them: so they are STABLE, as their arithmetic is, and of one expression.
-- From where the next starts are planned. A partition with nothing reserved was idle: it begins now, evenly spaced; others may be
-- behind their plan by the slack.
CREATE FUNCTION {schema}.throttle_base_v1(q {schema}.queue, p_clock timestamptz, p_reserved int, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN (q).throttle_step IS NOT NULL THEN
        greatest(p_clock, CASE WHEN p_reserved <= 0 THEN p_now ELSE p_now - (q).throttle_slack END) END
$$;

-- When a run may start before which p_more others start besides those reserved; NULL without a throttle.
CREATE FUNCTION {schema}.next_start_v1(q {schema}.queue, p_clock timestamptz, p_reserved int, p_more bigint, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT {schema}.throttle_base_v1(q, p_clock, p_reserved, p_now) + (q).throttle_step * (p_reserved + p_more) - (q).throttle_burst
$$;

-- Until when a partition leaves the ready ones; NULL: it may reserve now. It comes back when half of what is reserved ahead has started.
CREATE FUNCTION {schema}.throttled_until_v1(q {schema}.queue, p_clock timestamptz, p_reserved int, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN {schema}.next_start_v1(q, p_clock, p_reserved, 0, p_now) > p_now + (q).throttle_ahead
                THEN {schema}.next_start_v1(q, p_clock, p_reserved, 0, p_now) - (q).throttle_ahead / 2 END
$$;

-- How many runs a partition may reserve now, at least p_least; NULL: any number. A ready one may always reserve one, whose start_at
-- tells the truth: the clock may have been read before the partition became ready.
CREATE FUNCTION {schema}.throttle_room_v1(q {schema}.queue, p_clock timestamptz, p_reserved int, p_least int, p_now timestamptz) RETURNS int
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN (q).throttle_step IS NOT NULL THEN greatest(p_least, least(1000000, floor(
        extract(epoch FROM p_now + (q).throttle_ahead - {schema}.next_start_v1(q, p_clock, p_reserved, 0, p_now))
        / extract(epoch FROM (q).throttle_step)) + 1))::int END
$$;

-- Bring throttled partitions back whose time has come, as many as there is room for. Waits for no lock: what is locked is left to its
-- holder, or to the next one who looks. A tenant's partition comes back only with its tenant, which must be known to be ready.
-- asleep: those that go on sleeping, until a new time; passed: those whose tenant was locked. Both need a hint (hint_throttled_v1).
CREATE FUNCTION {schema}.wake_throttled_v1(q {schema}.queue, p_limit int, p_now timestamptz, OUT asleep bigint[], OUT passed bigint[])
LANGUAGE plpgsql AS $$
DECLARE v_ids bigint[]; v_tenants bigint[]; v_floor bigint;
BEGIN
    SELECT array_agg(x.partition_id), array_agg(DISTINCT x.tenant_id) FILTER (WHERE x.tenant_id IS NOT NULL) INTO v_ids, v_tenants
    FROM (SELECT partition_id, tenant_id FROM {schema}.partition WHERE queue_id = q.queue_id AND state = 't' AND ready_at <= p_now
          ORDER BY ready_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED) x;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    v_floor := {schema}.virtual_time_v1(q.queue_id);
    IF v_tenants IS NOT NULL THEN
        v_tenants := ARRAY(SELECT tenant_id FROM {schema}.tenant WHERE tenant_id = ANY (v_tenants) ORDER BY tenant_id FOR NO KEY UPDATE SKIP LOCKED);
        passed := ARRAY(SELECT partition_id FROM {schema}.partition WHERE partition_id = ANY (v_ids) AND tenant_id <> ALL (v_tenants));
    END IF;
    -- One whose reserved runs have not started still sleeps, as the plan has moved with the time. Sorted, as in grant_slots_v1.
    WITH fresh AS MATERIALIZED (
        SELECT x.partition_id, {schema}.throttled_until_v1(q, x.throttle_clock, x.reserved, p_now) AS until,
               CASE WHEN x.tenant_id IS NULL THEN greatest(x.vt, v_floor) ELSE greatest(x.vt, coalesce(
                   (SELECT o.vt FROM {schema}.partition o WHERE o.tenant_id = x.tenant_id AND o.state = 'r' ORDER BY o.vt LIMIT 1),
                   (SELECT t.floor FROM {schema}.tenant t WHERE t.tenant_id = x.tenant_id))) END AS vt
        FROM {schema}.partition x WHERE x.partition_id = ANY (v_ids) AND (x.tenant_id IS NULL OR x.tenant_id = ANY (v_tenants))
        ORDER BY x.partition_id + 0),
    moved AS (
        UPDATE {schema}.partition p SET state = CASE WHEN f.until IS NULL THEN 'r' ELSE 't' END, ready_at = f.until, hinted_at = NULL, vt = f.vt
        FROM fresh f WHERE p.partition_id = ANY (ARRAY[f.partition_id]) RETURNING p.partition_id, p.state)
    SELECT array_agg(m.partition_id) INTO asleep FROM moved m WHERE m.state = 't';
    UPDATE {schema}.tenant t SET ready = true, vt = greatest(t.vt, v_floor) WHERE t.tenant_id = ANY (v_tenants) AND NOT t.ready;
END $$;

-- A delayed wakeup for the next run of each of these partitions that sleeps and has none, if it can be sent so far ahead. Waits for no lock.
-- p_again: one that is due within a second may have come already, as delays are whole seconds, so it counts as none; what is sent in its stead
-- comes a second later, not in vain once more. Whoever was passed over is hinted for the next moment. Either once a second at most.
CREATE FUNCTION {schema}.hint_throttled_v1(q {schema}.queue, p_ids bigint[], p_now timestamptz, p_again boolean DEFAULT false)
RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    WITH mine AS MATERIALIZED (
        SELECT partition_id FROM {schema}.partition
        WHERE partition_id = ANY (p_ids) AND state = 't' AND ready_at <= p_now + interval '15 minutes'
          AND (hinted_at IS NULL OR p_again AND hinted_at <= p_now + interval '1 second')
        ORDER BY partition_id FOR NO KEY UPDATE SKIP LOCKED),
    hinted AS (
        UPDATE {schema}.partition p SET hinted_at = CASE
            WHEN p.ready_at > p_now + CASE WHEN p_again THEN interval '1 second' ELSE interval '0' END THEN p.ready_at
            ELSE p_now + interval '2 seconds' END
        FROM mine WHERE p.partition_id = ANY (ARRAY[mine.partition_id])
        RETURNING p.partition_id, p.head, p.tenant, p.concurrency_key, p.ready_at)
    SELECT 'hint', 0, w.run_id, NULL::text, q.name, h.tenant, h.concurrency_key, w.due_at,
           greatest(h.ready_at - p_now, CASE WHEN p_again AND h.ready_at > p_now THEN interval '1 second' ELSE interval '20 milliseconds' END), NULL::json
    FROM hinted h CROSS JOIN LATERAL (
        SELECT x.run_id, x.due_at FROM {schema}.waiting x WHERE x.partition_id = h.partition_id AND x.score >= h.head
        ORDER BY x.score, x.run_id LIMIT 1) w;
END $$;

-- The same for those of a queue that wake within a time.
CREATE FUNCTION {schema}.hint_ahead_v1(q {schema}.queue, p_ahead interval, p_limit int, p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
BEGIN
    IF q.throttle_step > q.throttle_ahead / 2 THEN
        RETURN QUERY SELECT * FROM {schema}.hint_throttled_v1(q, ARRAY(
            SELECT partition_id FROM {schema}.partition
            WHERE queue_id = q.queue_id AND state = 't' AND ready_at > p_now AND ready_at <= p_now + p_ahead AND hinted_at IS NULL
            ORDER BY ready_at LIMIT p_limit), p_now);
    END IF;
END $$;

-- Enter a queue without waiting for any lock; NULL: somebody changes it, or has its row.
CREATE FUNCTION {schema}.try_enter_queue_v1(p_queue_id int) RETURNS {schema}.queue
LANGUAGE plpgsql AS $$
DECLARE q {schema}.queue;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(1919317612, p_queue_id) THEN
        RETURN NULL;
    END IF;
    SELECT * INTO q FROM {schema}.queue WHERE queue_id = p_queue_id;
    IF q.total_limit IS NOT NULL THEN
        SELECT * INTO q FROM {schema}.queue WHERE queue_id = p_queue_id FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    RETURN q;
END $$;

-- Which of these dispatch rows may start, all of partitions that are locked: those whose time has come, in their order, as many as the
-- clock permits. They are charged to it. A late one, whose place the clock has given to others, is put off: it gets another start_at.
CREATE FUNCTION {schema}.take_starts_v1(
    q {schema}.queue, p_ids uuid[], p_partitions bigint[], p_now timestamptz, OUT starts uuid[], OUT late uuid[], OUT late_at timestamptz[])
LANGUAGE plpgsql AS $$
BEGIN
    WITH judged AS MATERIALIZED (
        SELECT d.run_id, d.partition_id, d.nth, d.nth <= p.room AS is_start, p.clock
        FROM (SELECT x.run_id, x.partition_id,
                     row_number() OVER (PARTITION BY x.partition_id ORDER BY x.start_at, x.dispatch_seq) AS nth
              FROM {schema}.dispatch x
              WHERE x.run_id = ANY (p_ids) AND x.partition_id = ANY (p_partitions) AND x.start_at <= p_now) d
        CROSS JOIN LATERAL (
            SELECT y.clock, floor(extract(epoch FROM p_now + (q).throttle_burst - y.clock) / extract(epoch FROM (q).throttle_step)) + 1 AS room
            FROM (SELECT greatest(z.throttle_clock, p_now - (q).throttle_slack) AS clock
                  FROM {schema}.partition z WHERE z.partition_id = d.partition_id OFFSET 0) y) p),
    charged AS (
        UPDATE {schema}.partition p SET throttle_clock = x.clock + (q).throttle_step * x.n, reserved = p.reserved - x.n
        FROM (SELECT partition_id, count(*)::int AS n, min(clock) AS clock FROM judged j WHERE j.is_start GROUP BY 1) x
        WHERE p.partition_id = ANY (ARRAY[x.partition_id]))
    SELECT array_agg(j.run_id ORDER BY j.run_id) FILTER (WHERE j.is_start), array_agg(j.run_id ORDER BY j.run_id) FILTER (WHERE NOT j.is_start),
           array_agg(j.clock + (q).throttle_step * (j.nth - 1) - (q).throttle_burst ORDER BY j.run_id) FILTER (WHERE NOT j.is_start)
    INTO starts, late, late_at FROM judged j;
END $$;

-- Put late rows off to their new times. Locks all that were asked for, in order. Those whose time is too far ahead to hold a place for it
-- are answered.
CREATE FUNCTION {schema}.put_off_v1(
    q {schema}.queue, p_ids uuid[], p_partitions bigint[], p_late uuid[], p_late_at timestamptz[], p_now timestamptz) RETURNS uuid[]
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM {schema}.dispatch d WHERE d.run_id = ANY (p_ids) AND d.partition_id = ANY (p_partitions) ORDER BY d.run_id FOR UPDATE;
    UPDATE {schema}.dispatch d SET start_at = x.at, expires_at = d.expires_at + (x.at - d.start_at) FROM unnest(p_late, p_late_at) x(id, at) WHERE d.run_id = ANY (ARRAY[x.id]);
    RETURN ARRAY(SELECT d.run_id FROM {schema}.dispatch d WHERE d.run_id = ANY (p_ids) AND d.partition_id = ANY (p_partitions)
                 AND d.start_at > p_now + greatest(q.throttle_ahead, interval '2 seconds') ORDER BY 1);
END $$;

-- lease_dispatched_v1 on a throttled queue. p_waits: the caller has locked nothing but a counter shard, and rows of queues before this
-- one; else it waits for no lock, and passes rows over. p_tells: a row that does not start is answered as refused, with the time until it
-- may; one that was passed over soon. Rows whose time is far go back into the order, if it waits. Locks: the queue, partitions, dispatch rows.
CREATE FUNCTION {schema}.lease_throttled_v1(
    p_queue_id int, p_ids uuid[], p_lease interval, p_worker text, p_waits boolean, p_tells boolean) RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
DECLARE
    q {schema}.queue; v_partitions bigint[]; v_now timestamptz; v_starts uuid[]; v_late uuid[]; v_late_at timestamptz[]; v_back uuid[];
    v_touched bigint[];
BEGIN
    q := CASE WHEN p_waits THEN {schema}.enter_queue_v1(p_queue_id) ELSE {schema}.try_enter_queue_v1(p_queue_id) END;
    IF q.queue_id IS NOT NULL THEN
        v_partitions := ARRAY(SELECT DISTINCT d.partition_id FROM {schema}.dispatch d WHERE d.run_id = ANY (p_ids));
        IF p_waits THEN
            PERFORM {schema}.lock_partitions_v1(v_partitions);
        ELSE
            v_partitions := ARRAY(SELECT p.partition_id FROM {schema}.partition p WHERE p.partition_id = ANY (v_partitions)
                                  ORDER BY p.partition_id FOR NO KEY UPDATE SKIP LOCKED);
        END IF;
        v_now := clock_timestamp();
        IF q.throttle_step IS NULL THEN
            RETURN QUERY SELECT * FROM {schema}.lease_dispatched_v1(p_queue_id, p_ids, p_lease, p_worker, v_now, true, p_waits, p_tells);
            RETURN;
        END IF;
        SELECT * INTO v_starts, v_late, v_late_at FROM {schema}.take_starts_v1(q, p_ids, v_partitions, v_now);
        IF cardinality(v_starts) IS DISTINCT FROM cardinality(p_ids) THEN
            v_back := {schema}.put_off_v1(q, p_ids, v_partitions, v_late, v_late_at, v_now);
        END IF;
        IF v_starts IS NOT NULL THEN
            RETURN QUERY SELECT * FROM {schema}.lease_dispatched_v1(p_queue_id, v_starts, p_lease, p_worker, v_now, true, p_waits, p_tells);
        END IF;
        IF p_waits AND cardinality(v_back) > 0 THEN
            SELECT g.v_touched INTO v_touched FROM {schema}.give_back_v1(q, v_back, false, v_now, 'throttled') g;
            q := {schema}.enter_queue_v1(p_queue_id);
            RETURN QUERY SELECT c.* FROM {schema}.grant_slots_v1(q, v_touched, v_now) e CROSS JOIN LATERAL {schema}.effect_as_claim_v1(e) c;
        END IF;
    END IF;
    IF p_tells AND cardinality(v_starts) IS DISTINCT FROM cardinality(p_ids) THEN
        RETURN QUERY SELECT * FROM {schema}.tell_throttled_v1(q, p_ids, v_back, p_waits);
    END IF;
END $$;

-- Why these have not started: their time is yet to come, or somebody held their partition for a moment. Those of p_back wait again.
CREATE FUNCTION {schema}.tell_throttled_v1(q {schema}.queue, p_ids uuid[], p_back uuid[], p_waited boolean) RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT c.* FROM {schema}.dispatch d
    CROSS JOIN LATERAL {schema}.effect_as_claim_v1(('refusal', 0, d.run_id, 'throttled', q.name, NULL, NULL, NULL,
        CASE WHEN d.start_at > v_now THEN d.start_at - v_now WHEN p_waited THEN interval '0' ELSE interval '20 milliseconds' END,
        NULL)::{schema}.effect) c
    WHERE d.run_id = ANY (p_ids)
    UNION ALL
    SELECT c.* FROM unnest(p_back) i
    CROSS JOIN LATERAL {schema}.effect_as_claim_v1(('refusal', 0, i, 'throttled', q.name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect) c
    WHERE p_waited;
END $$;

-- A throttle comes into force, or another: what is dispatched counts as reserved, and may start from now on. A clock that the old
-- throttle left far ahead is lowered to one step of the new. The caller is alone on the queue, and its rows have their partitions.
CREATE FUNCTION {schema}.begin_throttle_v1(q {schema}.queue, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.dispatch SET start_at = p_now WHERE queue_id = q.queue_id AND start_at IS NULL;
    UPDATE {schema}.partition p
    SET throttle_clock = least(p.throttle_clock, p_now + q.throttle_burst + q.throttle_step), reserved = x.n
    FROM (SELECT i.partition_id, sum(i.n)::int AS n
          FROM (SELECT y.partition_id, 0 AS n FROM {schema}.partition y WHERE y.queue_id = q.queue_id
                UNION ALL SELECT d.partition_id, 1 FROM {schema}.dispatch d WHERE d.queue_id = q.queue_id) i GROUP BY 1) x
    WHERE p.partition_id = ANY (ARRAY[x.partition_id])
      AND (p.reserved <> x.n OR p.throttle_clock > p_now + q.throttle_burst + q.throttle_step);
END $$;
