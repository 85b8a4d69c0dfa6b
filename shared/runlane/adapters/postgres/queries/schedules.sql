-- name: write_schedules
-- Put the code's schedules in force.
SELECT * FROM {schema}.write_schedules_v1(%(schedules)s::json, %(actor)s);

-- name: read_schedule_digests
-- What is in force, to be compared with the code.
SELECT name, md5(definition::text), enabled FROM {schema}.schedule ORDER BY name;

-- name: due_schedules
-- Schedules that are to be looked at, the most urgent first, and those about which a clock that went ahead has decided: they cannot be
-- told by when they are to be looked at.
SELECT * FROM (
    (SELECT name, definition, version, decided_until, now()
     FROM {schema}.schedule WHERE look_at <= now() ORDER BY look_at LIMIT %(limit)s)
    UNION ALL
    (SELECT name, definition, version, decided_until, now()
     FROM {schema}.schedule WHERE decided_until > now() + interval '15 minutes' AND look_at > now() ORDER BY decided_until LIMIT %(limit)s)
) x LIMIT %(limit)s;

-- name: materialize_schedules
-- Make the runs of fires, once each.
SELECT * FROM {schema}.materialize_schedules_v1(%(plans)s::json, %(fires)s::json);

-- name: list_schedules
-- Schedules in force, each with its last fire.
SELECT s.name, s.definition, s.enabled, s.paused_at, f.fire_at, f.run_id::text, now()
FROM {schema}.schedule s
LEFT JOIN LATERAL (SELECT x.fire_at, x.run_id FROM {schema}.schedule_fire x WHERE x.schedule = s.name AND x.fire_at <= now()
                   ORDER BY x.fire_at DESC LIMIT 1) f ON true
WHERE %(schedule)s::text IS NULL OR s.name = %(schedule)s ORDER BY s.name;

-- name: pause_schedule
-- Fire no more, and cancel what was made ahead.
SELECT * FROM {schema}.pause_schedule_v1(%(schedule)s, %(actor)s);

-- name: resume_schedule
-- Fire again from now on.
SELECT {schema}.resume_schedule_v1(%(schedule)s, %(actor)s);

-- name: trigger_schedule
-- A run beside the fires.
SELECT task, (effect).* FROM {schema}.trigger_schedule_v1(%(schedule)s, %(actor)s);
