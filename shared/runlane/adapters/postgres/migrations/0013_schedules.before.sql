-- Schedules: what fires when, and which fires have become runs. Reasons and figures: docs/decisions/0006-schedules.md.
-- Lock order: rows of schedule by name come before all else (0002), since what fires them triggers, and what changes them cancels.

-- definition: everything that a run of it is made of, so that a tick needs no code. version: changes with whatever is decided about it, so
-- that of two who decide at once one has come too late. About fires up to decided_until it is decided. look_at: when a tick has to look
-- at it, the look-ahead before its next fire; NULL while it is paused, disabled or over.
CREATE TABLE {schema}.schedule (
    name          text PRIMARY KEY,
    definition    json NOT NULL,
    enabled       boolean NOT NULL,
    version       bigint NOT NULL DEFAULT 1,
    decided_until timestamptz NOT NULL,
    look_at       timestamptz,
    paused_at     timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX schedule_look ON {schema}.schedule (look_at) WHERE look_at IS NOT NULL;
-- Those about which a clock that went ahead has decided too much.
CREATE INDEX schedule_decided ON {schema}.schedule (decided_until) WHERE look_at IS NOT NULL;

-- One run for each fire, whoever ticks and however often. Kept for a day, and the last of each schedule for as long as it is the last.
CREATE TABLE {schema}.schedule_fire (
    schedule text NOT NULL,
    fire_at  timestamptz NOT NULL,
    due_at   timestamptz NOT NULL,
    run_id   uuid NOT NULL,
    PRIMARY KEY (schedule, fire_at)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {schema}.schedule_change (
    schedule   text NOT NULL,
    change     text NOT NULL CHECK (change IN ('created', 'updated', 'removed', 'paused', 'resumed')),
    changed_at timestamptz NOT NULL,
    actor      text,
    before     json,
    after      json
);

-- Cancel the runs of these schedules, whose rows the caller has locked, that have not started and whose time has not come, be it by jitter
-- or as somebody put them off; of each schedule those of fires after p_after. Fires that have not come may be made again. Kind 'start': one
-- that has started meanwhile goes on. Answers as cancel_runs_v1.
CREATE FUNCTION {schema}.cancel_ahead_v1(p_schedules text[], p_after timestamptz[], p_actor text, p_reason text, p_now timestamptz)
RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_ids uuid[]; v_lot record; v_effects {schema}.effect[] := '{}';
BEGIN
    v_ids := ARRAY(
        SELECT f.run_id FROM unnest(p_schedules, p_after) i(schedule, after)
        CROSS JOIN LATERAL (
            SELECT x.run_id FROM {schema}.schedule_fire x WHERE x.schedule = i.schedule AND x.fire_at > i.after
            AND coalesce((SELECT t.due_at FROM {schema}.timer t WHERE t.run_id = x.run_id AND t.attempt = 0),
                         (SELECT o.due_at FROM {schema}.successor o WHERE o.run_id = x.run_id)) > p_now OFFSET 0) f);
    IF cardinality(v_ids) = 0 THEN
        RETURN;
    END IF;
    PERFORM {schema}.lock_singletons_v1(v_ids);
    FOR v_lot IN
        SELECT r.queue_id, array_agg(r.run_id ORDER BY r.run_id) AS ids FROM {schema}.run r
        WHERE r.run_id = ANY (v_ids) AND NOT EXISTS (SELECT 1 FROM {schema}.outcome o WHERE o.run_id = r.run_id OFFSET 0) GROUP BY 1 ORDER BY 1
    LOOP
        v_effects := v_effects || ARRAY(SELECT e FROM {schema}.stop_runs_v1(
            v_lot.queue_id, v_lot.ids, array_fill('start'::text, ARRAY[cardinality(v_lot.ids)]), p_actor, p_reason) e);
    END LOOP;
    v_ids := ARRAY(SELECT e.run_id FROM unnest(v_effects) e WHERE e.kind = 'cancelled' AND e.verdict = 'cancelled');
    DELETE FROM {schema}.schedule_fire f WHERE f.schedule = ANY (p_schedules) AND f.fire_at > p_now AND f.run_id = ANY (v_ids);
    RETURN QUERY SELECT e.* FROM unnest(v_effects) e;
END $$;

-- What makes the fires of a definition. Jitter and catch_up only say what becomes of them.
CREATE FUNCTION {schema}.timing_v1(p_definition json) RETURNS jsonb LANGUAGE sql IMMUTABLE
RETURN (p_definition->'timing')::jsonb - ARRAY['jitter', 'catch_up'];

-- Put these schedules in force and no others: an array of objects with name, definition and enabled. What is new fires from now on, and
-- so does what is changed. Fires that nobody has made are made up for by the new definition if the timing is still the same; those
-- of another timing are passed over, which a 'passed' effect tells (due_at: since when, due_in: for how long, detail: the old timing). A
-- pass looks at all of them: a later release may know newer zones; and the version is raised, as a pass of the old one may be about to
-- write its own. Answers a 'changed' effect for each (queue: its name), and those of cancelled runs.
CREATE FUNCTION {schema}.write_schedules_v1(p_schedules json, p_actor text) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz; v_removed text[]; v_updated text[]; v_names text[]; v_definitions json[]; v_enabled boolean[]; v_queue text;
BEGIN
    SELECT x.definition->'run'->>'queue' INTO v_queue FROM json_to_recordset(p_schedules) AS x(definition json)
    WHERE NOT EXISTS (SELECT 1 FROM {schema}.queue q WHERE q.name = x.definition->'run'->>'queue' OFFSET 0) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'queue % is not in the database: run `runlane migrate`', quote_literal(v_queue) USING ERRCODE = 'RL001';
    END IF;
    PERFORM pg_advisory_xact_lock(1919317612, -2);
    PERFORM 1 FROM {schema}.schedule ORDER BY name FOR UPDATE;
    v_now := clock_timestamp();
    SELECT coalesce(array_agg(x.name ORDER BY x.name), '{}'), array_agg(x.definition ORDER BY x.name), array_agg(x.enabled ORDER BY x.name)
    INTO v_names, v_definitions, v_enabled FROM json_to_recordset(p_schedules) AS x(name text, definition json, enabled boolean);
    v_removed := ARRAY(SELECT s.name FROM {schema}.schedule s EXCEPT SELECT unnest(v_names));
    WITH noted AS (
        INSERT INTO {schema}.schedule_change
        SELECT s.name, 'updated', v_now, p_actor, s.definition, i.definition
        FROM unnest(v_names, v_definitions, v_enabled) i(name, definition, enabled)
        CROSS JOIN LATERAL (SELECT x.name, x.definition, x.enabled FROM {schema}.schedule x WHERE x.name = i.name OFFSET 0) s
        WHERE (s.definition::text, s.enabled) IS DISTINCT FROM (i.definition::text, i.enabled) RETURNING schedule)
    SELECT coalesce(array_agg(n.schedule), '{}') INTO v_updated FROM noted n;
    INSERT INTO {schema}.schedule_change
    SELECT s.name, 'removed', v_now, p_actor, s.definition, NULL FROM {schema}.schedule s WHERE s.name = ANY (v_removed);
    RETURN QUERY
    SELECT 'passed', 0, NULL::uuid, NULL::text, s.name, NULL::text, NULL::text, s.decided_until, v_now - s.decided_until, s.definition
    FROM unnest(v_names, v_definitions, v_enabled) i(name, definition, enabled)
    CROSS JOIN LATERAL (
        SELECT x.* FROM {schema}.schedule x WHERE x.name = i.name AND x.enabled AND x.paused_at IS NULL AND x.decided_until < v_now OFFSET 0) s
    WHERE i.enabled AND {schema}.timing_v1(s.definition) <> {schema}.timing_v1(i.definition);
    -- A fire that has come belongs to the old definition, though its run be due later by its jitter; but what is removed or disabled stops.
    RETURN QUERY
    SELECT * FROM {schema}.cancel_ahead_v1(
        v_removed || v_updated,
        array_fill('-infinity'::timestamptz, ARRAY[cardinality(v_removed)]) || ARRAY(
            SELECT CASE WHEN v_enabled[array_position(v_names, u.name)] THEN v_now ELSE '-infinity' END
            FROM unnest(v_updated) WITH ORDINALITY u(name, ord) ORDER BY u.ord),
        p_actor, 'schedule_changed', v_now);
    DELETE FROM {schema}.schedule_fire WHERE schedule = ANY (v_removed);
    DELETE FROM {schema}.schedule WHERE name = ANY (v_removed);
    UPDATE {schema}.schedule s SET definition = i.definition, enabled = i.enabled, version = s.version + 1,
           decided_until = CASE WHEN i.enabled AND s.enabled AND s.paused_at IS NULL
                                     AND {schema}.timing_v1(s.definition) = {schema}.timing_v1(i.definition)
                                THEN least(s.decided_until, v_now) ELSE v_now END,
           look_at = CASE WHEN i.enabled AND s.paused_at IS NULL THEN v_now END
    FROM unnest(v_names, v_definitions, v_enabled) i(name, definition, enabled)
    WHERE s.name = ANY (ARRAY[i.name]) AND (s.definition::text, s.enabled) IS DISTINCT FROM (i.definition::text, i.enabled);
    UPDATE {schema}.schedule SET look_at = least(look_at, v_now), version = version + 1 WHERE look_at IS NOT NULL;
    RETURN QUERY
    WITH made AS (
        INSERT INTO {schema}.schedule (name, definition, enabled, decided_until, look_at)
        SELECT i.name, i.definition, i.enabled, v_now, CASE WHEN i.enabled THEN v_now END
        FROM unnest(v_names, v_definitions, v_enabled) i(name, definition, enabled)
        WHERE NOT EXISTS (SELECT 1 FROM {schema}.schedule s WHERE s.name = i.name OFFSET 0)
        RETURNING name, definition),
    noted AS (
        INSERT INTO {schema}.schedule_change SELECT name, 'created', v_now, p_actor, NULL, definition FROM made),
    changed AS (
        SELECT name, 'created' AS change FROM made UNION ALL SELECT unnest(v_updated), 'updated' UNION ALL SELECT unnest(v_removed), 'removed')
    SELECT 'changed', 0, NULL::uuid, c.change, c.name, NULL::text, NULL::text, NULL::timestamptz, NULL::interval, NULL::json FROM changed c;
END $$;

-- Carry out what a pass has decided: p_plans have ord, name, version, until and look_at, p_fires plan (its ord), fire_at and due_at. A plan
-- for another version is passed over with its fires. Answers a 'decided' effect for each other plan (queue: its name), a 'counted' one
-- for each run, and wakeups.
CREATE FUNCTION {schema}.materialize_schedules_v1(p_plans json, p_fires json) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz; v_names text[]; v_decided boolean[]; v_ord int; v_schedules text[]; v_fires timestamptz[]; v_runs text;
    v_effects {schema}.effect[];
BEGIN
    SELECT array_agg(p.name ORDER BY p.ord), array_agg(false) INTO v_names, v_decided FROM json_to_recordset(p_plans) AS p(ord int, name text);
    PERFORM 1 FROM {schema}.schedule s WHERE s.name = ANY (v_names) ORDER BY s.name FOR UPDATE;
    v_now := clock_timestamp();
    FOR v_ord IN
        UPDATE {schema}.schedule s SET version = s.version + 1, decided_until = p.until, look_at = p.look_at
        FROM json_to_recordset(p_plans) AS p(ord int, name text, version bigint, until timestamptz, look_at timestamptz)
        -- Not IS NOT NULL, for which the index of those to look at would be walked once a plan.
        WHERE s.name = ANY (ARRAY[p.name]) AND s.version = p.version AND num_nulls(s.look_at) = 0 RETURNING p.ord
    LOOP
        v_decided[v_ord] := true;
        RETURN NEXT ('decided', 0, NULL, NULL, v_names[v_ord], NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
    END LOOP;
    -- The stored run is JSON text; what a fire adds to it is put in front.
    SELECT array_agg(x.schedule ORDER BY x.ord), array_agg(x.fire_at::timestamptz ORDER BY x.ord),
           '[' || string_agg(format('{"ord":%s,"run_at":%s,"meta":{"schedule_id":%s,"fire_at":%s},', x.ord, to_json(x.due_at), to_json(x.schedule),
                                    to_json(x.fire_at)) || substr(x.run, 2), ',' ORDER BY x.ord) || ']'
    INTO v_schedules, v_fires, v_runs
    FROM (SELECT f.fire_at, f.due_at, s.schedule, s.run, row_number() OVER (ORDER BY f.due_at, s.schedule) AS ord
          FROM json_to_recordset(p_fires) AS f(plan int, fire_at text, due_at timestamptz)
          CROSS JOIN LATERAL (
              SELECT y.name AS schedule, y.definition->>'run' AS run FROM {schema}.schedule y WHERE y.name = v_names[f.plan] OFFSET 0) s
          WHERE v_decided[f.plan] AND NOT EXISTS (
              SELECT 1 FROM {schema}.schedule_fire o WHERE o.schedule = s.schedule AND o.fire_at = f.fire_at::timestamptz OFFSET 0)) x;
    IF v_runs IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(e) INTO v_effects FROM {schema}.trigger_runs_v1(v_runs::json, true) e;
    INSERT INTO {schema}.schedule_fire (schedule, fire_at, due_at, run_id)
    SELECT v_schedules[e.ord], v_fires[e.ord], e.due_at, e.run_id FROM unnest(v_effects) e WHERE e.kind = 'run';
    DELETE FROM {schema}.schedule_fire f
    WHERE f.schedule = ANY (v_schedules) AND f.fire_at < v_now - interval '1 day' AND EXISTS (
        SELECT 1 FROM {schema}.schedule_fire o WHERE o.schedule = f.schedule AND o.fire_at > f.fire_at AND o.fire_at <= v_now OFFSET 0);
    RETURN QUERY
    SELECT CASE e.kind WHEN 'run' THEN 'counted' ELSE e.kind END, 0, e.run_id, NULL::text, e.queue, e.tenant, e.concurrency_key, e.due_at, e.due_in,
           NULL::json
    FROM unnest(v_effects) e
    UNION ALL
    -- Those within the horizon of a delayed wakeup, which their timers are marked to have.
    SELECT 'hint', 0, e.run_id, NULL::text, e.queue, e.tenant, e.concurrency_key, e.due_at, e.due_in, NULL::json FROM unnest(v_effects) e
    WHERE e.kind = 'run' AND e.detail IS NULL AND e.due_in > interval '0' AND e.due_in <= interval '15 minutes';
END $$;

-- Answers first a 'paused' effect, none if there is no such schedule; then those of the runs that were made ahead.
CREATE FUNCTION {schema}.pause_schedule_v1(p_name text, p_actor text) RETURNS SETOF {schema}.effect
LANGUAGE plpgsql AS $$
DECLARE s {schema}.schedule; v_now timestamptz;
BEGIN
    SELECT * INTO s FROM {schema}.schedule x WHERE x.name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_now := clock_timestamp();
    RETURN NEXT ('paused', 0, NULL, NULL, p_name, NULL, NULL, NULL, NULL, NULL)::{schema}.effect;
    IF s.paused_at IS NULL THEN
        UPDATE {schema}.schedule SET paused_at = v_now, look_at = NULL, version = version + 1 WHERE name = p_name;
        INSERT INTO {schema}.schedule_change VALUES (p_name, 'paused', v_now, p_actor, NULL, NULL);
        RETURN QUERY SELECT * FROM {schema}.cancel_ahead_v1(ARRAY[p_name], ARRAY['-infinity'::timestamptz], p_actor, 'schedule_paused', v_now);
    END IF;
END $$;

-- Time in a pause is decided: nothing of it is made up for. Answers whether there is such a schedule.
CREATE FUNCTION {schema}.resume_schedule_v1(p_name text, p_actor text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE s {schema}.schedule; v_now timestamptz;
BEGIN
    SELECT * INTO s FROM {schema}.schedule x WHERE x.name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_now := clock_timestamp();
    IF s.paused_at IS NOT NULL THEN
        UPDATE {schema}.schedule SET paused_at = NULL, decided_until = v_now, look_at = CASE WHEN s.enabled THEN v_now END, version = version + 1
        WHERE name = p_name;
        INSERT INTO {schema}.schedule_change VALUES (p_name, 'resumed', v_now, p_actor, NULL, NULL);
    END IF;
    RETURN true;
END $$;

-- A run of a schedule beside its fires. Answers as trigger_runs_v1, its 'run' effect with the task; nothing: there is no such schedule.
CREATE FUNCTION {schema}.trigger_schedule_v1(p_name text, p_actor text) RETURNS TABLE (task text, effect {schema}.effect)
LANGUAGE plpgsql AS $$
DECLARE v_run json;
BEGIN
    SELECT s.definition->'run' INTO v_run FROM {schema}.schedule s WHERE s.name = p_name;
    IF FOUND THEN
        RETURN QUERY SELECT v_run->>'task', e FROM {schema}.trigger_runs_v1(
            (format('[{"ord":1,"actor":%s,"meta":{"schedule_id":%s},', coalesce(to_json(p_actor)::text, 'null'), to_json(p_name))
             || substr(v_run::text, 2) || ']')::json, true) e;
    END IF;
END $$;

SELECT {schema}.pin_plans_v1(ARRAY[
        'write_schedules_v1(json, text)', 'materialize_schedules_v1(json, json)', 'pause_schedule_v1(text, text)',
        'trigger_schedule_v1(text, text)']);
