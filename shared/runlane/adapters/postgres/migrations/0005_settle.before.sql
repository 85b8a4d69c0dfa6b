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
    due_at          timestamptz,
    tenant          text,
    concurrency_key text
);

-- End the leases of one queue whose tokens match, write outcomes and events. p_settlements is sorted by run id, so that leases are
-- visited in the lock order. Slots are counted in the events here, and freed by the caller.
CREATE FUNCTION {schema}.end_leases_v1(q {schema}.queue, p_settlements json, p_bounded boolean, p_now timestamptz) RETURNS {schema}.settled[]
LANGUAGE plpgsql AS $$
DECLARE v_settled {schema}.settled[];
BEGIN
    WITH taken AS (
        DELETE FROM {schema}.lease l USING json_to_recordset(p_settlements) AS s(
            run_id uuid, token uuid, kind text, result json, failure json, delay interval, reason text, final boolean)
        WHERE l.run_id = s.run_id AND l.token = s.token AND l.queue_id = q.queue_id AND (s.kind <> 'lease_expired' OR l.expires_at <= p_now)
        RETURNING l.run_id, l.partition_id, l.due_at, l.priority, l.attempt, l.failures, l.seq, s.kind, s.result, s.failure, s.reason,
            coalesce(s.delay, interval '0') AS delay,
            CASE WHEN l.cancel_requested_at IS NOT NULL THEN CASE WHEN s.kind IN ('failed', 'retry') THEN 'failed' ELSE 'cancelled' END
                 WHEN s.kind = 'retry' OR s.kind = 'lease_expired' AND s.final IS NOT TRUE THEN 'retrying'
                 WHEN s.kind = 'lease_expired' THEN 'failed'
                 WHEN s.kind = 'handed_back' THEN 'queued'
                 ELSE s.kind END AS becomes),
    decided AS MATERIALIZED (
        SELECT t.*, t.becomes IN ('succeeded', 'failed', 'cancelled') AS ends,
            CASE t.kind WHEN 'handed_back' THEN t.attempt - 1 ELSE t.attempt END AS claims,
            CASE t.kind WHEN 'released' THEN 0 WHEN 'succeeded' THEN t.failures WHEN 'handed_back' THEN t.failures ELSE t.failures + 1 END
                AS now_failures,
            CASE WHEN t.kind = 'handed_back' AND t.delay <= interval '0' THEN t.due_at ELSE p_now + t.delay END AS now_due,
            -- A lost lease is a line of its own before what came of it.
            t.seq + CASE t.kind WHEN 'lease_expired' THEN 2 ELSE 1 END AS now_seq,
            p.slot_seq + row_number() OVER part AS slot_seq, p.occupied - row_number() OVER part AS occupied,
            row_number() OVER (ORDER BY t.run_id) AS place, p.tenant, p.concurrency_key
        FROM taken t LEFT JOIN {schema}.partition p ON p_bounded AND p.partition_id = t.partition_id
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
    SELECT array_agg((run_id, partition_id, kind, becomes, ends, attempt, claims, now_failures, now_seq, priority, now_due, tenant,
                      concurrency_key)::{schema}.settled)
    INTO v_settled FROM decided;
    RETURN v_settled;
END $$;

-- Those that go on: a line of history for a lost lease, and a timer. On a bounded queue, what is due at once goes back into its
-- partition instead, which the caller has locked; elsewhere its wakeup makes it ready.
CREATE FUNCTION {schema}.continue_runs_v1(p_queue_id int, p_settled {schema}.settled[], p_bounded boolean, p_now timestamptz) RETURNS {schema}.motion[]
LANGUAGE plpgsql AS $$
DECLARE v_again {schema}.motion[]; v_shard int := floor(random() * 16); v_later int;
BEGIN
    INSERT INTO {schema}.event (run_id, seq, type, at, attempt)
    SELECT run_id, seq - 1, 'run.lease_expired', p_now, attempt FROM unnest(p_settled) WHERE kind = 'lease_expired';
    INSERT INTO {schema}.timer (run_id, queue_id, due_at, priority, status, attempt, failures, seq, hinted_at)
    SELECT run_id, p_queue_id, due_at, priority, becomes, claims, failures, seq, CASE WHEN due_at <= p_now + interval '15 minutes' THEN p_now END
    FROM unnest(p_settled) WHERE NOT ends AND (due_at > p_now OR NOT p_bounded);
    GET DIAGNOSTICS v_later = ROW_COUNT;
    IF v_later > 0 THEN
        UPDATE {schema}.queue_counter SET scheduled = scheduled + v_later WHERE queue_id = p_queue_id AND shard = v_shard;
    END IF;
    IF p_bounded THEN
        SELECT array_agg((run_id, partition_id, due_at, priority, becomes, claims, failures, seq, 0)::{schema}.motion)
        INTO v_again FROM unnest(p_settled) WHERE NOT ends AND due_at <= p_now;
    END IF;
    RETURN v_again;
END $$;

-- Settle what belongs to one queue; the effects begin with the settled runs.
CREATE FUNCTION {schema}.settle_queue_v1(p_queue_id int, p_settlements json, p_ids uuid[], p_partitions bigint[]) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    q {schema}.queue := {schema}.enter_queue_v1(p_queue_id); v_bounded boolean := q.concurrency_limit IS NOT NULL OR q.total_limit IS NOT NULL;
    v_runs {schema}.motion[] := {schema}.take_recorded_v1(p_queue_id, 100); v_again {schema}.motion[]; v_touched bigint[];
    v_settled {schema}.settled[]; v_now timestamptz; v_count int; v_shard int := floor(random() * 16);
BEGIN
    IF v_bounded OR v_runs IS NOT NULL THEN
        SELECT array_agg(DISTINCT i) INTO v_touched
        FROM (SELECT unnest(p_partitions) WHERE v_bounded UNION ALL SELECT m.partition_id FROM unnest(v_runs) m) x(i);
        PERFORM {schema}.lock_partitions_v1(v_touched);
    END IF;
    v_now := clock_timestamp();
    v_settled := {schema}.end_leases_v1(q, p_settlements, v_bounded, v_now);
    v_count := coalesce(cardinality(v_settled), 0);
    IF v_count > 0 THEN
        RETURN QUERY
        SELECT CASE WHEN NOT ends AND (due_at > v_now OR NOT v_bounded) AND due_at <= v_now + interval '15 minutes' THEN 'hint' ELSE 'settled' END,
               0, run_id, becomes, q.name, tenant, concurrency_key, due_at, greatest(due_at - v_now, interval '0'), NULL::json
        FROM unnest(v_settled);
        UPDATE {schema}.queue_counter SET running = running - v_count WHERE queue_id = p_queue_id AND shard = v_shard;
        IF v_bounded THEN
            UPDATE {schema}.partition p SET occupied = p.occupied - x.n, slot_seq = p.slot_seq + x.n
            FROM (SELECT partition_id, count(*)::int AS n FROM unnest(v_settled) GROUP BY 1) x WHERE p.partition_id = x.partition_id;
            IF q.total_limit IS NOT NULL THEN
                UPDATE {schema}.queue SET occupied = occupied - v_count, slot_seq = slot_seq + v_count WHERE queue_id = p_queue_id RETURNING * INTO q;
            END IF;
        END IF;
        IF EXISTS (SELECT 1 FROM unnest(v_settled) WHERE NOT ends OR kind = 'lease_expired') THEN
            v_again := {schema}.continue_runs_v1(p_queue_id, v_settled, v_bounded, v_now);
            IF v_again IS NOT NULL THEN
                v_runs := coalesce(v_runs, '{}') || v_again;
            END IF;
        END IF;
    END IF;
    IF v_count < cardinality(p_ids) THEN
        RETURN QUERY SELECT * FROM {schema}.refuse_results_v1(p_settlements,
            ARRAY(SELECT i FROM unnest(p_ids) i WHERE i NOT IN (SELECT m.run_id FROM unnest(v_settled) m)), v_now);
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

CREATE FUNCTION {schema}.refuse_results_v1(p_settlements json, p_ids uuid[], p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_refused record;
BEGIN
    FOR v_refused IN
        SELECT s.run_id, s.kind FROM json_to_recordset(p_settlements) AS s(run_id uuid, kind text) WHERE s.run_id = ANY (p_ids) ORDER BY 1
    LOOP
        IF v_refused.kind <> 'lease_expired' THEN
            PERFORM {schema}.record_refusal_v1(v_refused.run_id, v_refused.kind, p_now);
        END IF;
        RETURN NEXT ('refused', 0, v_refused.run_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
    END LOOP;
END $$;

CREATE FUNCTION {schema}.settle_runs_v1(p_settlements json) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_lot record; v_matched uuid[] := '{}'; v_lost uuid[];
BEGIN
    FOR v_lot IN
        SELECT l.queue_id, array_agg(s.run_id) AS ids, array_agg(DISTINCT l.partition_id) FILTER (WHERE l.partition_id IS NOT NULL) AS partitions
        FROM json_to_recordset(p_settlements) AS s(run_id uuid, token uuid) JOIN {schema}.lease l ON l.run_id = s.run_id AND l.token = s.token
        GROUP BY 1 ORDER BY 1
    LOOP
        RETURN QUERY SELECT * FROM {schema}.settle_queue_v1(v_lot.queue_id, p_settlements, v_lot.ids, v_lot.partitions);
        v_matched := v_matched || v_lot.ids;
    END LOOP;
    IF cardinality(v_matched) < json_array_length(p_settlements) THEN
        SELECT array_agg(s.run_id) INTO v_lost FROM json_to_recordset(p_settlements) AS s(run_id uuid) WHERE s.run_id <> ALL (v_matched);
        RETURN QUERY SELECT * FROM {schema}.refuse_results_v1(p_settlements, v_lost, clock_timestamp());
    END IF;
END $$;

-- Settle, then lease the oldest unclaimed dispatch rows of these queues, as inline continuation does: one round trip and one commit a
-- turn. What is claimed here needs no wakeup, so none is answered for it.
CREATE FUNCTION {schema}.settle_and_claim_v1(p_settlements json, p_queues text[], p_limit int, p_lease interval, p_worker text)
RETURNS SETOF {schema}.claim
LANGUAGE plpgsql AS $$
DECLARE v_effects {schema}.effect[]; v_claims {schema}.claim[];
BEGIN
    SELECT array_agg(e) INTO v_effects FROM {schema}.settle_runs_v1(p_settlements) e;
    SELECT array_agg(c) INTO v_claims FROM {schema}.claim_oldest_v1(p_queues, p_limit, p_lease, p_worker) c;
    RETURN QUERY SELECT (c).* FROM unnest(v_claims) c;
    RETURN QUERY
    SELECT c.* FROM unnest(v_effects) e CROSS JOIN LATERAL {schema}.effect_as_claim_v1(e) c
    WHERE e.kind <> 'wakeup' OR NOT EXISTS (SELECT 1 FROM unnest(v_claims) m WHERE m.kind = 'claim' AND m.run_id = e.run_id::text);
END $$;

-- Extend every lease whose token is still stored, even after its expiry, in one statement.
CREATE FUNCTION {schema}.heartbeat_v1(p_ids uuid[], p_tokens uuid[], p_lease interval) RETURNS TABLE (run_id text, cancellation_requested boolean)
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    UPDATE {schema}.lease l SET expires_at = v_now + p_lease
    FROM (SELECT * FROM unnest(p_ids, p_tokens) i(id, token) ORDER BY 1) i WHERE l.run_id = i.id AND l.token = i.token
    RETURNING l.run_id::text, l.cancel_requested_at IS NOT NULL;
END $$;
