-- Retention: weeks of run, outcome and event whose time is up. A week of which nothing must stay is dropped whole; of any other the ended
-- runs are deleted a few at a time, and it is looked at again every day. What has not ended is never touched, however old it is.

-- Weeks that are past their time, from the first look until they are dropped. swept_to: up to here its runs have been looked at.
-- keeps: something of it must stay, so that its ended runs are deleted one by one. Nobody looks at it before rests_until. sqlstate and
-- message: why its last step failed.
CREATE TABLE {schema}.retention (
    low         uuid PRIMARY KEY,
    high        uuid NOT NULL,
    swept_to    uuid NOT NULL,
    keeps       boolean NOT NULL,
    rests_until timestamptz,
    sqlstate    text,
    message     text
);

-- When each work of maintenance was last done, and which of its phases failed: 'tick', a pass; 'hold', that recovery began to wait.
CREATE TABLE {schema}.upkeep (
    work   text PRIMARY KEY,
    at     timestamptz NOT NULL,
    failed text[] NOT NULL
) WITH (fillfactor = 20);

-- Note that a pass was made, and which phases of it failed. Of two at once one note is enough.
CREATE FUNCTION {schema}.note_tick_v1(p_failed text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp();
BEGIN
    INSERT INTO {schema}.upkeep (work, at, failed) SELECT 'tick', v_now, p_failed WHERE NOT EXISTS (SELECT 1 FROM {schema}.upkeep u WHERE u.work = 'tick') ON CONFLICT DO NOTHING;
    UPDATE {schema}.upkeep SET at = v_now, failed = p_failed
    WHERE ctid = (SELECT u.ctid FROM {schema}.upkeep u WHERE u.work = 'tick' AND u.at < v_now FOR UPDATE SKIP LOCKED);
END $$;

-- Whether expired leases are left alone for a while. When most of all leases have expired, and more than any one worker is likely to have
-- had, it was the way to the database that died and not the workers: their owners get the time of two heartbeats to say that they go on,
-- or all of that work would be done twice at once. Whoever is still silent then is gone. Comes before every row in the lock order.
CREATE FUNCTION {schema}.recovery_waits_v1() RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp(); v_held timestamptz; v_expired int; v_kept int;
    c_hold CONSTANT interval := '10 seconds'; c_over CONSTANT interval := '3 minutes'; c_few CONSTANT int := 20;
BEGIN
    IF (SELECT count(*) FROM (SELECT 1 FROM {schema}.lease WHERE expires_at <= v_now LIMIT c_few + 1) x) <= c_few THEN
        RETURN false;
    END IF;
    SELECT at INTO v_held FROM {schema}.upkeep WHERE work = 'hold' AND at BETWEEN v_now - c_over AND v_now;
    IF FOUND THEN
        RETURN v_held > v_now - c_hold;
    END IF;
    SELECT count(*) FILTER (WHERE expires_at <= v_now), count(*) FILTER (WHERE expires_at > v_now) INTO v_expired, v_kept FROM {schema}.lease;
    IF v_expired < v_kept THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.upkeep (work, at, failed) VALUES ('hold', v_now, '{}')
    ON CONFLICT (work) DO UPDATE SET at = excluded.at;
    RETURN true;
END $$;

-- The instant of a run id.
CREATE FUNCTION {schema}.run_id_time_v1(p_run_id uuid) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT to_timestamp(('x' || left(replace(p_run_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)
$$;

-- The least run id of the week of a table.
CREATE FUNCTION {schema}.week_low_v1(p_part text) RETURNS uuid
LANGUAGE sql STABLE AS $$
    SELECT {schema}.run_id_floor_v1(to_date(right(p_part, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC')
$$;

-- The tables of a week, and whether they are attached, pending (a concurrent detach was cut off) or detached. What is dropped is absent.
-- run goes first: a run without it is simply not found, while one without its end would look lost, and one without a history damaged.
CREATE FUNCTION {schema}.week_tables_v1(p_low uuid) RETURNS TABLE (place int, parent text, part text, stands text, owner oid)
LANGUAGE sql STABLE AS $$
    SELECT p.place, p.parent, c.relname::text,
           CASE WHEN i.inhrelid IS NULL THEN 'detached' WHEN i.inhdetachpending THEN 'pending' ELSE 'attached' END, c.relowner
    FROM (VALUES (1, 'run'), (2, 'outcome'), (3, 'event')) p(place, parent)
    JOIN pg_catalog.pg_class c ON c.relnamespace = (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = {literal}) AND c.relkind = 'r'
     AND c.relname = p.parent || to_char({schema}.run_id_time_v1(p_low) AT TIME ZONE 'UTC', '"_"YYYYMMDD')
    LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
    ORDER BY 1
$$;

-- Whether a run of the week has not ended: it stands in a small table then, each of which has the id in an index.
CREATE FUNCTION {schema}.week_is_active_v1(p_low uuid, p_high uuid) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM {schema}.inbox x WHERE x.run_id >= p_low AND x.run_id < p_high)
        OR EXISTS (SELECT 1 FROM {schema}.successor x WHERE x.run_id >= p_low AND x.run_id < p_high)
        OR EXISTS (SELECT 1 FROM {schema}.timer x WHERE x.run_id >= p_low AND x.run_id < p_high)
        OR EXISTS (SELECT 1 FROM {schema}.waiting x WHERE x.run_id >= p_low AND x.run_id < p_high)
        OR EXISTS (SELECT 1 FROM {schema}.dispatch x WHERE x.run_id >= p_low AND x.run_id < p_high)
        OR EXISTS (SELECT 1 FROM {schema}.lease x WHERE x.run_id >= p_low AND x.run_id < p_high)
$$;

-- Free the keys of ended runs between two ids, passing over those that somebody holds; false: some are left.
CREATE FUNCTION {schema}.free_week_keys_v1(p_from uuid, p_to uuid) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.idempotency_key WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM {schema}.idempotency_key k WHERE k.run_id >= p_from AND k.run_id <= p_to FOR UPDATE SKIP LOCKED));
    DELETE FROM {schema}.singleton_key WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM {schema}.singleton_key k WHERE k.run_id >= p_from AND k.run_id <= p_to FOR UPDATE SKIP LOCKED));
    RETURN NOT EXISTS (SELECT 1 FROM {schema}.idempotency_key k WHERE k.run_id >= p_from AND k.run_id <= p_to)
       AND NOT EXISTS (SELECT 1 FROM {schema}.singleton_key k WHERE k.run_id >= p_from AND k.run_id <= p_to);
END $$;

-- Look at the next ended runs of a week. A week that may go whole: note the slots and free the keys that go with them, until one is found
-- that must stay, since it ended within the time or keeps its idempotency key: then begin again, run by run. Answers how many.
CREATE FUNCTION {schema}.sweep_week_v1(w {schema}.retention, p_ended_before timestamptz, p_limit int, p_now timestamptz) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE v_ids uuid[]; v_count int; v_first uuid; v_last uuid;
BEGIN
    IF w.swept_to = w.low THEN
        w.keeps := w.keeps AND w.rests_until IS NULL OR {schema}.week_is_active_v1(w.low, w.high);
    END IF;
    v_ids := ARRAY(SELECT o.run_id FROM {schema}.outcome o WHERE o.run_id > w.swept_to AND o.run_id < w.high ORDER BY o.run_id LIMIT p_limit);
    v_count := cardinality(v_ids);
    v_first := v_ids[1];
    v_last := v_ids[v_count];
    IF v_count = 0 THEN
        NULL;
    ELSIF w.keeps THEN
        PERFORM {schema}.delete_runs_v1(ARRAY(
            SELECT o.run_id FROM {schema}.outcome o
            WHERE o.run_id = ANY (v_ids) AND o.run_id >= v_first AND o.run_id <= v_last AND o.ended_at < p_ended_before ORDER BY o.run_id),
            false, p_now);
    ELSIF EXISTS (SELECT 1 FROM {schema}.outcome o WHERE o.run_id >= v_first AND o.run_id <= v_last AND o.ended_at >= p_ended_before)
       OR EXISTS (SELECT 1 FROM {schema}.idempotency_key k WHERE k.run_id >= v_first AND k.run_id <= v_last AND k.expires_at > p_now
                  AND (SELECT o.status <> 'failed' FROM {schema}.outcome o WHERE o.run_id = k.run_id)) THEN
        UPDATE {schema}.retention SET keeps = true, swept_to = low, rests_until = NULL WHERE low = w.low;
        RETURN v_count;
    ELSE
        INSERT INTO {schema}.pruned_slots AS f (partition_id, slot_seq, queue_slot_seq)
        SELECT e.partition_id, max(e.slot_seq), coalesce(max(e.queue_slot_seq), 0) FROM {schema}.event e
        WHERE e.run_id >= v_first AND e.run_id <= v_last AND e.slot_seq IS NOT NULL GROUP BY 1 ORDER BY 1
        ON CONFLICT (partition_id) DO UPDATE
        SET slot_seq = greatest(f.slot_seq, excluded.slot_seq), queue_slot_seq = greatest(f.queue_slot_seq, excluded.queue_slot_seq);
        PERFORM {schema}.free_week_keys_v1(v_first, v_last);
        DELETE FROM {schema}.retried WHERE run_id >= v_first AND run_id <= v_last;
        DELETE FROM {schema}.deadline WHERE run_id >= v_first AND run_id <= v_last;
    END IF;
    -- At its end a week that keeps something rests for a day, one that does not is ready to go.
    UPDATE {schema}.retention
    SET keeps = w.keeps,
        swept_to = CASE WHEN v_count = p_limit THEN v_last WHEN w.keeps THEN low ELSE high END,
        sqlstate = NULL, message = NULL,
        rests_until = CASE WHEN v_count < p_limit AND w.keeps THEN p_now + interval '1 day' END
    WHERE low = w.low;
    RETURN v_count;
END $$;

-- Whether a transaction of now still has a table in use after half a second; a prepared one has no process.
CREATE FUNCTION {schema}.in_use_v1(p_parent text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE v_parent regclass := format('%I.%I', {literal}, p_parent)::regclass; v_users text[];
BEGIN
    v_users := ARRAY(SELECT l.virtualtransaction FROM pg_catalog.pg_locks l
                     WHERE l.relation = v_parent AND l.pid IS DISTINCT FROM pg_backend_pid()
                       AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database()));
    FOR i IN 1..10 LOOP
        EXIT WHEN NOT EXISTS (SELECT 1 FROM pg_catalog.pg_locks l WHERE l.relation = v_parent AND l.virtualtransaction = ANY (v_users));
        IF i = 10 THEN
            RETURN true;
        END IF;
        PERFORM pg_sleep(0.05);
    END LOOP;
    RETURN false;
END $$;

-- Whether another table of the parent is being detached: only one at a time can be.
CREATE FUNCTION {schema}.detaches_another_v1(p_parent text, p_part text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = format('%I.%I', {literal}, p_parent)::regclass AND i.inhdetachpending AND c.relname <> p_part)
$$;

-- One step towards dropping a week that has been swept: detach its next table, or finish a detach that was cut off, or drop what is
-- detached. Answers 'detach' if the caller is to do it, as an owner can without anybody waiting. A table that somebody has in use is
-- left alone: where all would wait for the lock it is not asked for, and where nobody would it leaves no detach half done.
CREATE FUNCTION {schema}.drop_week_v1(w {schema}.retention, OUT action text, OUT parent text, OUT part text)
LANGUAGE plpgsql AS $$
DECLARE t record;
BEGIN
    IF NOT {schema}.free_week_keys_v1(w.low, w.high) THEN
        action := 'busy';
        RETURN;
    END IF;
    SELECT * INTO t FROM {schema}.week_tables_v1(w.low) x WHERE x.stands <> 'detached' ORDER BY x.place LIMIT 1;
    IF FOUND THEN
        action := 'detached';
        parent := t.parent;
        part := t.part;
        IF t.stands = 'pending' THEN
            EXECUTE format('ALTER TABLE %I.%I DETACH PARTITION %I.%I FINALIZE', {literal}, parent, {literal}, part);
        ELSIF {schema}.detaches_another_v1(parent, part) OR {schema}.in_use_v1(parent) THEN
            action := 'busy';
        ELSIF pg_has_role(session_user, t.owner, 'USAGE') THEN
            action := 'detach';
        ELSE
            EXECUTE format('ALTER TABLE %I.%I DETACH PARTITION %I.%I', {literal}, parent, {literal}, part);
        END IF;
        RETURN;
    END IF;
    FOR t IN SELECT * FROM {schema}.week_tables_v1(w.low) LOOP
        EXECUTE format('DROP TABLE %I.%I', {literal}, t.part);
    END LOOP;
    DELETE FROM {schema}.retried WHERE run_id >= w.low AND run_id < w.high;
    DELETE FROM {schema}.deadline WHERE run_id >= w.low AND run_id < w.high;
    DELETE FROM {schema}.retention WHERE low = w.low;
    action := 'dropped';
END $$;

-- A week whose step failed rests for an hour.
CREATE FUNCTION {schema}.week_failed_v1(p_low uuid, p_sqlstate text, p_message text) RETURNS void
LANGUAGE sql AS $$
    UPDATE {schema}.retention SET rests_until = clock_timestamp() + interval '1 hour', sqlstate = p_sqlstate, message = p_message WHERE low = p_low
$$;

-- One bounded step of retention. p_for: a day at least; NULL: for ever, and only what has begun to go still goes. Safe when run twice at
-- once: who looks at a week has it to himself, and one that is being detached rests meanwhile. It waits a fifth of a second for a lock at
-- most. A week that is busy rests for a minute, one that fails for an hour, with the reason, so that no week keeps others from their turn.
-- Answers what was done: 'none', 'swept' (and how many runs were looked at), 'detach' (to be done by the caller), 'detached', 'dropped',
-- 'busy' or 'failed'; the caller may ask again until it is 'none'.
-- It runs as the schema's owner, since the runtime's role owns no table; its names are constants and its numbers typed, and only those
-- whom the schema is granted to may call it.
CREATE FUNCTION {schema}.retain_v1(p_for interval, p_limit int, OUT action text, OUT parent text, OUT part text, OUT looked_at int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    -- An interval of months and days may be a day long here, and reach into the future there.
    v_before timestamptz := least(v_now - p_for, v_now);
    v_cutoff uuid := {schema}.run_id_floor_v1(v_before);
    w {schema}.retention;
    v_state text;
    v_message text;
    v_detail text;
BEGIN
    IF p_for < interval '1 day' THEN
        RAISE EXCEPTION 'ended runs are kept for a day at least, not for %', p_for USING ERRCODE = 'invalid_parameter_value';
    END IF;
    looked_at := 0;
    action := 'none';
    INSERT INTO {schema}.retention (low, high, swept_to, keeps)
    SELECT x.low, x.high, x.low, false
    FROM (SELECT {schema}.run_id_floor_v1(s.start) AS low, {schema}.run_id_floor_v1(s.start + interval '168 hours') AS high
          FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
          CROSS JOIN LATERAL (SELECT to_date(substring(c.relname FROM '_(\d{8})$'), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC' AS start) s
          WHERE i.inhparent = format('%I.run', {literal})::regclass) x
    WHERE x.high <= v_cutoff
    ON CONFLICT DO NOTHING;
    -- A longer time than before, or for ever: what has not begun to go stays.
    DELETE FROM {schema}.retention r WHERE (p_for IS NULL OR r.high > v_cutoff)
       AND NOT EXISTS (SELECT 1 FROM {schema}.week_tables_v1(r.low) t WHERE t.stands <> 'attached');
    SELECT * INTO w FROM {schema}.retention r WHERE r.rests_until IS NULL OR r.rests_until <= v_now ORDER BY r.low LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    BEGIN
        IF w.swept_to = w.high THEN
            SELECT d.action, d.parent, d.part INTO action, parent, part FROM {schema}.drop_week_v1(w) d;
        ELSE
            action := 'swept';
            looked_at := {schema}.sweep_week_v1(w, v_before, p_limit, v_now);
        END IF;
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected OR serialization_failure THEN
            action := 'busy';
        WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS v_state = RETURNED_SQLSTATE, v_message = MESSAGE_TEXT, v_detail = PG_EXCEPTION_DETAIL;
            action := 'failed';
            -- What depends on a table stands in the detail; that of other errors may hold a row.
            IF v_state = '2BP01' THEN
                v_message := v_message || ': ' || v_detail;
            END IF;
            PERFORM {schema}.week_failed_v1(w.low, v_state, v_message);
    END;
    -- Longer than it takes to look at all the others that are as busy: so who asks until nothing is left comes to an end.
    IF action IN ('busy', 'detach') THEN
        UPDATE {schema}.retention SET rests_until = v_now + interval '1 minute' + (SELECT count(*) FROM {schema}.retention) * interval '2 seconds'
        WHERE low = w.low;
    END IF;
END $$;
REVOKE ALL ON FUNCTION {schema}.retain_v1(interval, int) FROM PUBLIC;

-- A week whose table its caller has detached need not rest.
CREATE FUNCTION {schema}.detached_v1(p_part text) RETURNS void
LANGUAGE sql AS $$
    UPDATE {schema}.retention SET rests_until = NULL, sqlstate = NULL, message = NULL WHERE swept_to = high AND low = {schema}.week_low_v1(p_part)
$$;

-- A table that its caller was refused to detach. Where another was faster, by a detach of its own, its week just rests.
CREATE FUNCTION {schema}.detach_failed_v1(p_parent text, p_part text, p_sqlstate text, p_message text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT {schema}.detaches_another_v1(p_parent, p_part) THEN
        PERFORM {schema}.week_failed_v1({schema}.week_low_v1(p_part), p_sqlstate, p_message);
    END IF;
END $$;

SELECT {schema}.pin_plans_v1(ARRAY['retain_v1(interval, int)']);
