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
        UPDATE {schema}.timer SET seq = seq + 1 WHERE run_id = p_run_id RETURNING seq INTO v_seq;
        EXIT WHEN FOUND;
        UPDATE {schema}.outcome SET seq = seq + 1 WHERE run_id = p_run_id RETURNING seq INTO v_seq;
        EXIT WHEN FOUND;
    END LOOP;
    IF v_seq IS NOT NULL THEN
        INSERT INTO {schema}.event (run_id, seq, type, at, data)
        VALUES (p_run_id, v_seq, 'run.result_refused', p_now, json_build_object('kind', p_kind));
    END IF;
END $$;

-- Settle the attempts of one queue. What is due again at once goes back into its partition, if the queue is bounded and so the
-- partition locked; everything else becomes a timer, whose wakeup makes it ready when it is due.
CREATE FUNCTION {schema}.settle_queue_v1(q {schema}.queue, p_settlements json, p_touched bigint[], p_now timestamptz,
    OUT settled {schema}.effect[], OUT again {schema}.motion[])
LANGUAGE plpgsql AS $$
DECLARE v_bounded boolean := p_touched IS NOT NULL; v_freed int; v_shard int := floor(random() * 16);
BEGIN
    WITH asked AS MATERIALIZED (
        SELECT * FROM json_to_recordset(p_settlements) AS s(
            run_id uuid, token uuid, kind text, result json, failure json, delay interval, reason text, final boolean)),
    mine AS MATERIALIZED (
        SELECT l.run_id FROM asked s JOIN {schema}.lease l ON l.run_id = s.run_id AND l.token = s.token
        WHERE l.queue_id = q.queue_id AND (s.kind <> 'lease_expired' OR l.expires_at <= p_now)
        ORDER BY l.run_id FOR UPDATE OF l),
    taken AS (
        DELETE FROM {schema}.lease l USING mine WHERE l.run_id = mine.run_id RETURNING l.*),
    decided AS (
        SELECT l.*, s.kind, s.result, s.failure, s.delay, s.reason,
            CASE s.kind
                WHEN 'succeeded' THEN CASE WHEN l.cancel_requested_at IS NULL THEN 'succeeded' ELSE 'cancelled' END
                WHEN 'failed' THEN 'failed'
                WHEN 'retry' THEN CASE WHEN l.cancel_requested_at IS NULL THEN 'retrying' ELSE 'failed' END
                WHEN 'released' THEN CASE WHEN l.cancel_requested_at IS NULL THEN 'released' ELSE 'cancelled' END
                WHEN 'handed_back' THEN CASE WHEN l.cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END
                WHEN 'lease_expired' THEN CASE WHEN l.cancel_requested_at IS NOT NULL THEN 'cancelled'
                                               WHEN s.final THEN 'failed' ELSE 'retrying' END
            END AS becomes
        FROM taken l JOIN asked s ON s.run_id = l.run_id),
    counted AS MATERIALIZED (
        SELECT d.*,
            d.becomes IN ('succeeded', 'failed', 'cancelled') AS ends,
            CASE d.kind WHEN 'released' THEN 0 WHEN 'retry' THEN d.failures + 1 WHEN 'failed' THEN d.failures + 1
                        WHEN 'lease_expired' THEN d.failures + 1 ELSE d.failures END AS now_failures,
            CASE WHEN d.kind = 'handed_back' THEN d.attempt - 1 ELSE d.attempt END AS now_attempt,
            CASE WHEN d.kind = 'handed_back' AND coalesce(d.delay, interval '0') <= interval '0' THEN d.due_at
                 ELSE p_now + coalesce(d.delay, interval '0') END AS now_due,
            -- A lost lease is a line of its own before what came of it.
            d.seq + CASE WHEN d.kind = 'lease_expired' THEN 2 ELSE 1 END AS now_seq,
            p.slot_seq, p.occupied, p.tenant AS part_tenant, p.concurrency_key AS part_key,
            CASE WHEN v_bounded THEN row_number() OVER (PARTITION BY d.partition_id ORDER BY d.run_id) END AS nth,
            CASE WHEN q.total_limit IS NOT NULL THEN row_number() OVER (ORDER BY d.run_id) END AS place
        FROM decided d LEFT JOIN {schema}.partition p ON v_bounded AND p.partition_id = d.partition_id),
    ended AS (
        INSERT INTO {schema}.outcome (run_id, status, attempt, failures, seq, ended_at, due_at, result, failure)
        SELECT run_id, becomes, now_attempt, now_failures, now_seq, p_now, due_at, result, failure FROM counted WHERE ends),
    lost AS (
        INSERT INTO {schema}.event (run_id, seq, type, at, attempt)
        SELECT run_id, seq + 1, 'run.lease_expired', p_now, attempt FROM counted WHERE kind = 'lease_expired'),
    ev AS (
        INSERT INTO {schema}.event (run_id, seq, type, at, attempt, partition_id, slot_seq, occupied, queue_slot_seq, queue_occupied, data)
        SELECT run_id, now_seq,
               CASE WHEN kind = 'handed_back' AND NOT ends THEN 'run.rescheduled'
                    WHEN becomes = 'retrying' THEN 'run.retry_scheduled' ELSE 'run.' || becomes END,
               p_now, attempt, CASE WHEN v_bounded THEN partition_id END, slot_seq + nth, occupied - nth,
               CASE WHEN place IS NOT NULL THEN q.slot_seq + place END, CASE WHEN place IS NOT NULL THEN q.occupied - place END,
               CASE WHEN kind <> 'succeeded' THEN json_strip_nulls(json_build_object(
                   'reason', reason, 'due_at', CASE WHEN NOT ends THEN now_due END, 'failure', failure)) END
        FROM counted),
    later AS (
        INSERT INTO {schema}.timer (run_id, queue_id, due_at, priority, status, attempt, failures, seq, hinted_at)
        SELECT run_id, queue_id, now_due, priority, becomes, now_attempt, now_failures, now_seq,
               CASE WHEN now_due <= p_now + interval '15 minutes' THEN p_now END
        FROM counted WHERE NOT ends AND (now_due > p_now OR NOT v_bounded)),
    freed AS (
        UPDATE {schema}.partition p SET occupied = p.occupied - x.n, slot_seq = p.slot_seq + x.n
        FROM (SELECT partition_id, count(*)::int AS n FROM counted WHERE v_bounded GROUP BY 1) x
        WHERE p.partition_id = x.partition_id),
    tallied AS (
        UPDATE {schema}.queue_counter c SET running = c.running - x.n, scheduled = c.scheduled + x.later
        FROM (SELECT count(*) AS n, count(*) FILTER (WHERE NOT ends AND (now_due > p_now OR NOT v_bounded)) AS later FROM counted HAVING count(*) > 0) x
        WHERE c.queue_id = q.queue_id AND c.shard = v_shard)
    SELECT array_agg((CASE WHEN NOT ends AND (now_due > p_now OR NOT v_bounded) AND now_due <= p_now + interval '15 minutes' THEN 'hint' ELSE 'settled' END,
                      0, run_id, becomes, q.name, part_tenant, part_key, now_due,
                      greatest(now_due - p_now, interval '0'), NULL)::{schema}.effect),
           array_agg((run_id, partition_id, now_due, priority, becomes, now_attempt, now_failures, now_seq, 0)::{schema}.motion)
               FILTER (WHERE NOT ends AND now_due <= p_now AND v_bounded),
           count(*)
    INTO settled, again, v_freed FROM counted;
    IF q.total_limit IS NOT NULL AND v_freed > 0 THEN
        UPDATE {schema}.queue SET occupied = occupied - v_freed, slot_seq = slot_seq + v_freed WHERE queue_id = q.queue_id;
    END IF;
END $$;

CREATE FUNCTION {schema}.settle_runs_v1(p_settlements json) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz; v_ids uuid[]; v_lot record; q {schema}.queue; v_touched bigint[]; v_runs {schema}.motion[]; v_again {schema}.motion[];
    v_settled {schema}.effect[]; v_all uuid[] := '{}'; v_refused record;
BEGIN
    SELECT array_agg((s->>'run_id')::uuid) INTO v_ids FROM json_array_elements(p_settlements) s;
    FOR v_lot IN
        SELECT queue_id, array_agg(DISTINCT partition_id) FILTER (WHERE partition_id IS NOT NULL) AS touched
        FROM {schema}.lease WHERE run_id = ANY (v_ids) GROUP BY queue_id ORDER BY queue_id
    LOOP
        q := {schema}.enter_queue_v1(v_lot.queue_id);
        v_runs := {schema}.take_recorded_v1(v_lot.queue_id, 100);
        v_touched := NULL;
        IF q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL THEN
            v_touched := coalesce(v_lot.touched, '{}');
        END IF;
        IF v_touched IS NOT NULL OR v_runs IS NOT NULL THEN
            SELECT array_agg(DISTINCT i) INTO v_touched
            FROM (SELECT unnest(v_touched) UNION ALL SELECT m.partition_id FROM unnest(v_runs) m) x(i);
            PERFORM {schema}.lock_partitions_v1(v_touched);
        END IF;
        v_now := clock_timestamp();
        SELECT s.settled, s.again INTO v_settled, v_again FROM {schema}.settle_queue_v1(q, p_settlements,
            CASE WHEN q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL THEN coalesce(v_touched, '{}') END, v_now) s;
        RETURN QUERY SELECT (e).* FROM unnest(v_settled) e;
        SELECT v_all || array_agg(e.run_id) INTO v_all FROM unnest(v_settled) e;
        IF q.total_limit IS NOT NULL THEN
            SELECT * INTO q FROM {schema}.queue WHERE queue_id = q.queue_id;
        END IF;
        IF v_again IS NOT NULL THEN
            v_runs := coalesce(v_runs, '{}') || v_again;
        END IF;
        IF v_runs IS NOT NULL THEN
            PERFORM {schema}.enqueue_runs_v1(q.queue_id, v_runs);
        END IF;
        IF v_touched IS NOT NULL THEN
            RETURN QUERY SELECT * FROM {schema}.grant_slots_v1(q, v_touched, v_now);
        ELSIF {schema}.has_ready_v1(q.queue_id) THEN
            RETURN QUERY SELECT * FROM {schema}.dispatch_fairly_v1(q, {schema}.window_room_v1(q), v_now);
        END IF;
    END LOOP;
    IF cardinality(v_all) < cardinality(v_ids) THEN
        FOR v_refused IN
            SELECT (s->>'run_id')::uuid AS run_id, s->>'kind' AS kind FROM json_array_elements(p_settlements) s
            WHERE NOT (s->>'run_id')::uuid = ANY (v_all) ORDER BY 1
        LOOP
            IF v_refused.kind <> 'lease_expired' THEN
                PERFORM {schema}.record_refusal_v1(v_refused.run_id, v_refused.kind, clock_timestamp());
            END IF;
            RETURN NEXT ('refused', 0, v_refused.run_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
        END LOOP;
    END IF;
END $$;

-- Extend every lease whose token is still stored, even after its expiry, in one statement.
CREATE FUNCTION {schema}.heartbeat_v1(p_ids uuid[], p_tokens uuid[], p_lease interval) RETURNS TABLE (run_id text, cancellation_requested boolean)
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH mine AS MATERIALIZED (
        SELECT l.run_id FROM unnest(p_ids, p_tokens) i(id, token) JOIN {schema}.lease l ON l.run_id = i.id AND l.token = i.token
        ORDER BY l.run_id FOR UPDATE OF l)
    UPDATE {schema}.lease l SET expires_at = v_now + p_lease FROM mine WHERE l.run_id = mine.run_id
    RETURNING l.run_id::text, l.cancel_requested_at IS NOT NULL;
END $$;
