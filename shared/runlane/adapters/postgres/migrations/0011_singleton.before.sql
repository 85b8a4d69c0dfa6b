-- One active run of each singleton key. A trigger may leave a successor to it, which the transaction that ends the active run promotes.
--
-- The lock on a row of singleton_key decides who comes first: a trigger that looks for the active run and leaves a successor, or the end
-- of that run. It is taken before a counter shard and before any queue is entered, several in the order of (task, key), since it may
-- be waited for as long as a caller's own transaction stays open that has just taken a free key. Such a transaction locks no other key:
-- it would keep a worker from settling for as long as it stays open. It records its successor beside the others; whoever locks the key
-- next, or fold_successors_v1, then does what is left to do.
--
-- The newest successor is the one with the greatest place: for triggers of their own transaction, the last to get the lock of the key;
-- for one in a caller's transaction, it counts when it was called.

-- Cancel a successor, which a newer one replaces.
CREATE FUNCTION {schema}.supersede_v1(p_run_id uuid, p_by uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE s {schema}.successor;
BEGIN
    DELETE FROM {schema}.successor WHERE run_id = p_run_id RETURNING * INTO s;
    IF FOUND THEN
        PERFORM {schema}.end_superseded_v1(p_run_id, s.seq + 1, s.due_at, p_by, p_now);
    END IF;
END $$;

CREATE FUNCTION {schema}.end_superseded_v1(p_run_id uuid, p_seq int, p_due_at timestamptz, p_by uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.outcome (run_id, status, attempt, failures, seq, ended_at, due_at)
    VALUES (p_run_id, 'cancelled', 0, 0, p_seq, p_now, p_due_at);
    INSERT INTO {schema}.event (run_id, seq, type, at, actor, data)
    VALUES (p_run_id, p_seq, 'run.cancelled', p_now, 'runlane', json_build_object('reason', 'superseded', 'by', p_by));
END $$;

-- Lock the key. It is the new run's if no active run owns it; else owner is the one that does.
CREATE FUNCTION {schema}.lock_or_take_key_v1(p_task text, p_key text, p_run_id uuid) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE v_owner uuid;
BEGIN
    LOOP
        INSERT INTO {schema}.singleton_key (task, key, run_id) VALUES (p_task, p_key, p_run_id) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT k.run_id INTO v_owner FROM {schema}.singleton_key k WHERE k.task = p_task AND k.key = p_key FOR UPDATE;
        -- Not found: its owner has just ended.
        EXIT WHEN FOUND;
    END LOOP;
    PERFORM 1 FROM {schema}.outcome WHERE run_id = v_owner;
    IF FOUND THEN
        UPDATE {schema}.singleton_key SET run_id = p_run_id WHERE task = p_task AND key = p_key;
        RETURN NULL;
    END IF;
    RETURN v_owner;
END $$;

-- Find the new run its place: it owns the key (owner NULL), or there is an active run, which it may leave the key to, or be held behind.
-- stops: the caller is to stop that one. With p_lock the key is locked, and the successors before this one are superseded.
CREATE FUNCTION {schema}.seat_run_v1(
    p_task text, p_key text, p_run_id uuid, p_mode text, p_lock boolean, p_now timestamptz, OUT owner uuid, OUT stops boolean)
LANGUAGE plpgsql AS $$
DECLARE v_held record;
BEGIN
    stops := false;
    IF p_mode = 'return' OR NOT p_lock THEN
        owner := {schema}.take_singleton_key_v1(p_task, p_key, p_run_id);
        RETURN;
    END IF;
    owner := {schema}.lock_or_take_key_v1(p_task, p_key, p_run_id);
    stops := p_mode = 'cancel';
    -- A cancel that was recorded stops what was there before it.
    FOR v_held IN SELECT s.run_id, s.recorded AND s.cancels AND s.run_id > owner AS cancels FROM {schema}.successor s
                  WHERE s.task = p_task AND s.key = p_key ORDER BY s.place LOOP
        stops := stops OR v_held.cancels;
        PERFORM {schema}.supersede_v1(v_held.run_id, p_run_id, p_now);
    END LOOP;
    stops := stops AND owner IS NOT NULL;
END $$;

-- Write down what record_runs_v1 found for the runs that it has just recorded: held behind an active run, or replaced by a later item.
CREATE FUNCTION {schema}.hold_runs_v1(p_ids uuid[], p_fates text[], p_heirs uuid[], p_locked boolean, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.successor (run_id, task, key, queue_id, due_at, priority, seq, recorded, cancels)
    SELECT r.run_id, r.task, r.singleton_key, r.queue_id, r.run_at, r.priority, 1, NOT p_locked, f.fate = 'cancel'
    FROM unnest(p_ids, p_fates) WITH ORDINALITY f(id, fate, ord)
    CROSS JOIN LATERAL (SELECT * FROM {schema}.run r WHERE r.run_id = f.id LIMIT 1) r
    WHERE f.fate IN ('latest', 'cancel') ORDER BY f.ord;
    PERFORM {schema}.end_superseded_v1(r.run_id, 2, r.run_at, f.heir, p_now)
    FROM unnest(p_ids, p_fates, p_heirs) f(id, fate, heir)
    CROSS JOIN LATERAL (SELECT * FROM {schema}.run r WHERE r.run_id = f.id LIMIT 1) r
    WHERE f.fate = 'superseded';
END $$;

-- Stop active runs of a queue in favour of their successors, and place the new runs of the same call in the same round of locks.
CREATE FUNCTION {schema}.replace_runs_v1(p_queue_id int, p_owners uuid[], p_ids uuid[], p_priorities int[], p_now timestamptz)
RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_runs {schema}.motion[];
BEGIN
    SELECT array_agg((i.run_id, NULL, p_now, i.priority, 'queued', 0, 0, 1, 0)::{schema}.motion) INTO v_runs
    FROM unnest(p_ids, p_priorities) i(run_id, priority);
    RETURN QUERY SELECT * FROM {schema}.stop_runs_v1(
        p_queue_id, p_owners, array_fill('replace'::text, ARRAY[cardinality(p_owners)]), 'runlane', NULL, v_runs);
    -- As place_runs_v1: a claim may have opened the window unseen.
    IF {schema}.has_ready_v1(p_queue_id) THEN
        RETURN QUERY SELECT 'starved', 0, NULL::uuid, NULL::text, q.name, NULL::text, NULL::text, NULL::timestamptz, NULL::interval, NULL::json
                     FROM {schema}.queue q WHERE q.queue_id = p_queue_id AND q.total_limit IS NULL AND q.paused_at IS NULL;
    END IF;
END $$;

-- Lock the keys that these runs own or are successors for, and those successors: until the end of the transaction nobody else promotes,
-- replaces or ends them. A successor may have no key beside it, when its active run ended before it was committed, or one that
-- fold_key_v1 has made and not committed; its own row is waited for then, and what became of it is looked at once more. Before any
-- counter shard, and once a transaction, as a second call would start over in the order. Answers the owners; NULL: none owns a key.
CREATE FUNCTION {schema}.lock_singletons_v1(p_ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE v_tasks text[]; v_keys text[]; v_found boolean;
BEGIN
    SELECT array_agg(x.task), array_agg(x.key) INTO v_tasks, v_keys
    FROM (SELECT k.task, k.key FROM {schema}.singleton_key k WHERE k.run_id = ANY (p_ids)
          UNION SELECT s.task, s.key FROM {schema}.successor s WHERE s.run_id = ANY (p_ids) ORDER BY 1, 2) x;
    IF v_tasks IS NULL THEN
        RETURN NULL;
    END IF;
    FOR i IN 1..cardinality(v_tasks) LOOP
        LOOP
            PERFORM 1 FROM {schema}.singleton_key k WHERE k.task = v_tasks[i] AND k.key = v_keys[i] FOR UPDATE;
            v_found := FOUND;
            PERFORM 1 FROM {schema}.successor s WHERE s.task = v_tasks[i] AND s.key = v_keys[i] AND s.run_id = ANY (p_ids)
            ORDER BY s.place FOR UPDATE;
            EXIT WHEN v_found;
            -- One that is locked stays a successor; one that was promoted meanwhile owns the key.
            PERFORM 1 FROM {schema}.singleton_key k WHERE k.task = v_tasks[i] AND k.key = v_keys[i] AND k.run_id = ANY (p_ids);
            EXIT WHEN NOT FOUND;
        END LOOP;
    END LOOP;
    RETURN (SELECT array_agg(k.run_id) FROM {schema}.singleton_key k WHERE k.run_id = ANY (p_ids));
END $$;

-- The successors of owners, whose keys are locked. One that somebody holds is just being cancelled.
CREATE FUNCTION {schema}.heirs_v1(p_owners uuid[], p_queue_id int) RETURNS {schema}.heir[]
LANGUAGE plpgsql AS $$
DECLARE v_heirs {schema}.heir[];
BEGIN
    WITH held AS MATERIALIZED (
        SELECT o.id AS owner_id, s.* FROM unnest(p_owners) o(id)
        CROSS JOIN LATERAL (SELECT k.task, k.key FROM {schema}.singleton_key k WHERE k.run_id = o.id LIMIT 1) k
        CROSS JOIN LATERAL (SELECT * FROM {schema}.successor s WHERE s.task = k.task AND s.key = k.key FOR UPDATE SKIP LOCKED) s)
    SELECT array_agg((owner_id, run_id, queue_id, due_at, priority, seq, is_next,
                      is_next AND queue_id = p_queue_id AND due_at <= clock_timestamp())::{schema}.heir)
    INTO v_heirs FROM (SELECT h.*, place = max(place) OVER (PARTITION BY owner_id) AS is_next FROM held h) x;
    RETURN v_heirs;
END $$;

-- The newest successor of an owner.
CREATE FUNCTION {schema}.next_of_v1(p_owner uuid) RETURNS uuid
LANGUAGE sql STABLE AS $$
    SELECT s.run_id FROM {schema}.singleton_key k
    CROSS JOIN LATERAL (SELECT x.run_id FROM {schema}.successor x WHERE x.task = k.task AND x.key = k.key ORDER BY x.place DESC LIMIT 1) s
    WHERE k.run_id = p_owner
$$;

-- The heirs that enter the order of the queue at hand, should their owners end.
CREATE FUNCTION {schema}.joining_v1(p_heirs {schema}.heir[]) RETURNS {schema}.motion[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg((h.run_id, NULL, h.due_at, h.priority, 'queued', 0, 0, h.seq, 0)::{schema}.motion) FROM unnest(p_heirs) h WHERE h.joins
$$;

-- The runs without the heirs whose owners have not ended: those are still held.
CREATE FUNCTION {schema}.without_held_v1(p_runs {schema}.motion[]) RETURNS {schema}.motion[]
LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(m) FROM unnest(p_runs) m WHERE NOT EXISTS (SELECT 1 FROM {schema}.successor s WHERE s.run_id = m.run_id OFFSET 0)
$$;

-- Runs have ended: their keys go to their heirs, or are free. Heirs that join the queue at hand are put in order by the caller; one of
-- another queue, which may not be entered now, is sent on its way by a wakeup, as is one due in the future.
CREATE FUNCTION {schema}.succeed_v1(p_ended uuid[], p_heirs {schema}.heir[], p_now timestamptz) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE h record;
BEGIN
    FOR h IN
        SELECT x.*, first_value(x.run_id) OVER (PARTITION BY x.owner_id ORDER BY x.is_next DESC) AS next_id FROM unnest(p_heirs) x
        WHERE EXISTS (SELECT 1 FROM {schema}.outcome o WHERE o.run_id = x.owner_id OFFSET 0)
    LOOP
        IF NOT h.is_next THEN
            PERFORM {schema}.supersede_v1(h.run_id, h.next_id, p_now);
            CONTINUE;
        END IF;
        DELETE FROM {schema}.successor WHERE run_id = h.run_id;
        UPDATE {schema}.singleton_key SET run_id = h.run_id WHERE run_id = h.owner_id;
        IF NOT h.joins THEN
            RETURN NEXT {schema}.send_off_v1(h.run_id, h.queue_id, h.due_at, h.priority, h.seq, p_now);
        END IF;
    END LOOP;
    DELETE FROM {schema}.singleton_key WHERE run_id = ANY (p_ended);
END $$;

-- A promoted run whose queue this transaction does not enter: a timer, or the inbox, and a wakeup that takes it from there.
CREATE FUNCTION {schema}.send_off_v1(p_run_id uuid, p_queue_id int, p_due_at timestamptz, p_priority int, p_seq int, p_now timestamptz)
RETURNS {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_soon boolean := p_due_at <= p_now + interval '15 minutes'; v_effect {schema}.effect;
BEGIN
    IF p_due_at > p_now THEN
        INSERT INTO {schema}.timer (run_id, queue_id, due_at, priority, status, attempt, failures, seq, hinted_at)
        VALUES (p_run_id, p_queue_id, p_due_at, p_priority, 'queued', 0, 0, p_seq, CASE WHEN v_soon THEN p_now END);
        INSERT INTO {schema}.queue_counter_delta (queue_id, scheduled) VALUES (p_queue_id, 1);
    ELSE
        INSERT INTO {schema}.inbox (run_id, queue_id) VALUES (p_run_id, p_queue_id);
    END IF;
    SELECT CASE WHEN v_soon THEN 'hint' ELSE 'promoted' END, 0, p_run_id, NULL, q.name, r.tenant, r.concurrency_key, p_due_at,
           greatest(p_due_at - p_now, interval '0'), NULL INTO v_effect
    FROM {schema}.run r, {schema}.queue q WHERE r.run_id = p_run_id AND q.queue_id = p_queue_id;
    RETURN v_effect;
END $$;

-- Do for one key what callers' transactions left to do: promote the newest successor if no active run is left, else hold it; supersede
-- the others. Answers the active run that is to be stopped, and the wakeup of the promoted one. Not done: it gives way to whoever holds
-- the key.
CREATE FUNCTION {schema}.fold_key_v1(p_task text, p_key text, p_now timestamptz, OUT done boolean, OUT stop uuid, OUT told {schema}.effect)
LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
DECLARE s {schema}.successor; v_owner uuid; v_older record; v_cancels boolean;
BEGIN
    done := true;
    SELECT * INTO s FROM {schema}.successor x WHERE x.task = p_task AND x.key = p_key ORDER BY x.place DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_owner := {schema}.lock_or_take_key_v1(p_task, p_key, s.run_id);
    -- Once more, now that nobody else can move them but by a cancel.
    SELECT * INTO s FROM {schema}.successor x WHERE x.task = p_task AND x.key = p_key ORDER BY x.place DESC LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
        DELETE FROM {schema}.singleton_key WHERE task = p_task AND key = p_key AND v_owner IS NULL;
        RETURN;
    END IF;
    v_cancels := s.recorded AND s.cancels AND s.run_id > v_owner;
    FOR v_older IN SELECT x.run_id, x.recorded AND x.cancels AND x.run_id > v_owner AS cancels FROM {schema}.successor x
                   WHERE x.task = p_task AND x.key = p_key AND x.place < s.place LOOP
        v_cancels := v_cancels OR v_older.cancels;
        PERFORM {schema}.supersede_v1(v_older.run_id, s.run_id, p_now);
    END LOOP;
    IF v_owner IS NULL THEN
        DELETE FROM {schema}.successor WHERE run_id = s.run_id;
        UPDATE {schema}.singleton_key SET run_id = s.run_id WHERE task = p_task AND key = p_key;
        told := {schema}.send_off_v1(s.run_id, s.queue_id, s.due_at, s.priority, s.seq, p_now);
    ELSE
        UPDATE {schema}.successor SET recorded = false WHERE run_id = s.run_id;
        stop := CASE WHEN v_cancels THEN v_owner END;
    END IF;
EXCEPTION WHEN lock_not_available THEN
    done := false;
    stop := NULL;
    told := NULL;
END $$;

-- What callers' transactions left to do. A transaction of its own, or its beginning: it enters the queues of the runs that it stops.
CREATE FUNCTION {schema}.fold_successors_v1(p_limit int) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp(); v_key record; v_done record; v_stops uuid[]; v_lot record;
BEGIN
    FOR v_key IN
        SELECT DISTINCT x.task, x.key FROM (SELECT s.task, s.key FROM {schema}.successor s WHERE s.recorded ORDER BY s.place LIMIT p_limit) x
        ORDER BY x.task, x.key
    LOOP
        SELECT * INTO v_done FROM {schema}.fold_key_v1(v_key.task, v_key.key, v_now);
        IF v_done.done THEN
            RETURN NEXT ('counted', 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
        END IF;
        IF (v_done.told).run_id IS NOT NULL THEN
            RETURN NEXT v_done.told;
        END IF;
        IF v_done.stop IS NOT NULL THEN
            v_stops := v_stops || v_done.stop;
        END IF;
    END LOOP;
    FOR v_lot IN
        SELECT r.queue_id, array_agg(r.run_id ORDER BY r.run_id) AS ids
        FROM unnest(v_stops) i(id) CROSS JOIN LATERAL (SELECT * FROM {schema}.run r WHERE r.run_id = i.id LIMIT 1) r GROUP BY 1 ORDER BY 1
    LOOP
        RETURN QUERY SELECT * FROM {schema}.replace_runs_v1(v_lot.queue_id, v_lot.ids, NULL, NULL, v_now);
    END LOOP;
END $$;

-- Send on their way what callers' transactions recorded on a queue, with timers whose time came before their transaction's end (those of a
-- minute; older ones are the tick's), and the hints of what is due before a tick would send them. 'again': runs of this or another queue had to be stopped first, so
-- what else was recorded needs another call.
CREATE FUNCTION {schema}.dispatch_recorded_v1(p_queue text, p_limit int) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_effects {schema}.effect[]; q {schema}.queue; v_now timestamptz; v_runs {schema}.motion[]; v_overdue uuid[];
BEGIN
    PERFORM 1 FROM {schema}.successor WHERE recorded LIMIT 1;
    IF FOUND THEN
        SELECT array_agg(e) INTO v_effects FROM {schema}.fold_successors_v1(p_limit) e;
        IF EXISTS (SELECT 1 FROM unnest(v_effects) e WHERE e.kind = 'cancelled') THEN
            RETURN QUERY SELECT * FROM unnest(v_effects);
            RETURN NEXT ('again', 0, NULL, NULL, p_queue, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
            RETURN;
        END IF;
        -- Those of this queue are in its inbox now, which is dispatched below.
        RETURN QUERY SELECT * FROM unnest(v_effects) e WHERE e.queue <> p_queue OR e.due_in > interval '0';
    END IF;
    SELECT * INTO q FROM {schema}.queue x WHERE x.name = p_queue;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    q := {schema}.enter_queue_v1(q.queue_id);
    v_now := clock_timestamp();
    v_runs := {schema}.take_recorded_v1(q.queue_id, p_limit);
    v_overdue := ARRAY(SELECT t.run_id FROM {schema}.timer t
                       WHERE t.hinted_at IS NULL AND t.due_at >= least({schema}.timer_floor_v1(v_now), v_now - interval '1 minute')
                         AND t.due_at <= v_now AND t.queue_id = q.queue_id ORDER BY t.due_at LIMIT p_limit);
    IF cardinality(v_overdue) > 0 THEN
        v_runs := nullif(coalesce(v_runs, '{}') || {schema}.take_due_v1(q.queue_id, v_overdue, v_now), '{}');
    END IF;
    RETURN QUERY SELECT * FROM {schema}.ready_runs_v1(q, {schema}.resolve_partitions_v1(q.queue_id, v_runs), v_now);
    RETURN QUERY SELECT * FROM {schema}.hint_timers_v1(q.queue_id, v_now, v_now + interval '3 minutes', p_limit, v_now);
END $$;

-- Who has a key, by the rules of a trigger: of a singleton key the active run; of an idempotency key the active one or, with
-- p_retained, one that has ended and still keeps it.
CREATE FUNCTION {schema}.find_owner_v1(p_task text, p_singleton_key text, p_idempotency_key text, p_retained boolean) RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
    SELECT k.run_id FROM {schema}.singleton_key k WHERE k.task = p_task AND k.key = p_singleton_key
       AND NOT EXISTS (SELECT 1 FROM {schema}.outcome o WHERE o.run_id = k.run_id)
    UNION ALL
    SELECT i.run_id FROM {schema}.idempotency_owner_v1(p_task, p_idempotency_key, clock_timestamp()) i
    WHERE p_retained OR NOT EXISTS (SELECT 1 FROM {schema}.outcome o WHERE o.run_id = i.run_id)
$$;

SELECT {schema}.pin_plans_v1(ARRAY['fold_successors_v1(int)', 'dispatch_recorded_v1(text, int)']);
