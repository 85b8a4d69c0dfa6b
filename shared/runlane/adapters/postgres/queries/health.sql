-- name: health_server
-- The server and the settings of this role's sessions.
SELECT current_setting('server_version'), quote_ident(current_user), clock_timestamp(),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
       (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean,
       nullif(current_setting('statement_timeout')::interval, interval '0'),
       nullif(current_setting('idle_in_transaction_session_timeout')::interval, interval '0'),
       pg_has_role('pg_read_all_stats', 'USAGE');

-- name: health_schema
-- Whose schema it is, and what was applied to it.
SELECT (SELECT name FROM {schema}.environment), ARRAY(SELECT number FROM {schema}.migration ORDER BY 1);

-- name: health_horizon
-- Who keeps old row versions from being vacuumed, the oldest first.
SELECT kind, name, age, held_for, remedy
FROM (SELECT 'session' AS kind,
             format('pid %%s of role %%s%%s%%s', a.pid, a.usename, ' (' || nullif(a.application_name, '') || ')', ', ' || a.state) AS name,
             greatest(age(a.backend_xmin), age(a.backend_xid)) AS age, clock_timestamp() - a.xact_start AS held_for,
             format('SELECT pg_terminate_backend(%%s)', a.pid) AS remedy
      FROM pg_stat_activity a
      WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.datname = current_database() AND a.pid <> pg_backend_pid()
        AND a.backend_type = 'client backend'
      UNION ALL
      SELECT 'prepared transaction', x.gid, age(x.transaction), clock_timestamp() - x.prepared, format('ROLLBACK PREPARED %%L', x.gid)
      FROM pg_prepared_xacts x WHERE x.database = current_database()
      UNION ALL
      SELECT 'replication slot', s.slot_name || CASE WHEN s.active THEN '' ELSE ', which nobody reads' END,
             greatest(age(s.xmin), age(s.catalog_xmin)), NULL, format('SELECT pg_drop_replication_slot(%%L)', s.slot_name)
      FROM pg_replication_slots s WHERE s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL
      UNION ALL
      SELECT 'standby', r.application_name, age(r.backend_xmin), NULL, 'end its long queries, or set hot_standby_feedback = off there'
      FROM pg_stat_replication r WHERE r.backend_xmin IS NOT NULL) x
WHERE age IS NOT NULL ORDER BY age DESC, held_for DESC NULLS LAST LIMIT 5;

-- name: health_tables
-- Tables whose rows come and go.
SELECT s.relname, s.n_dead_tup::bigint,
       coalesce((SELECT o.option_value::boolean FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'autovacuum_enabled'), true)
FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.schemaname = {literal} AND s.relname <> ALL (ARRAY['environment', 'migration', 'policy_change']) ORDER BY s.n_dead_tup DESC, 1;

-- name: health_id_ages
-- How far ids have run since the oldest that is still in use, in the database where it is oldest.
SELECT x.age, x.datname, m.age, m.datname
FROM (SELECT age(datfrozenxid), datname::text FROM pg_database ORDER BY 1 DESC LIMIT 1) x,
     (SELECT mxid_age(datminmxid) AS age, datname::text FROM pg_database ORDER BY 1 DESC LIMIT 1) m;

-- name: health_partition_gaps
-- Weeks from the present one for which a table has no attached partition.
SELECT w.ahead, p.parent
FROM generate_series(0, %(weeks)s) w(ahead) CROSS JOIN unnest(ARRAY['run', 'outcome', 'event']) p(parent)
WHERE NOT EXISTS (
    SELECT 1 FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = (SELECT t.oid FROM pg_class t WHERE t.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = {literal}) AND t.relname = p.parent)
      AND NOT i.inhdetachpending
      AND c.relname = p.parent || to_char(date_trunc('week', now() AT TIME ZONE 'UTC') + w.ahead * interval '7 days', '"_"YYYYMMDD'))
ORDER BY 1, 2;

-- name: health_upkeep
-- What a tick would have done.
SELECT clock_timestamp() - (SELECT u.at FROM {schema}.upkeep u WHERE u.work = 'tick'),
       coalesce((SELECT u.failed FROM {schema}.upkeep u WHERE u.work = 'tick'), ARRAY[]::text[]),
       (SELECT clock_timestamp() - t.due_at FROM {schema}.timer t WHERE t.due_at < clock_timestamp() ORDER BY t.due_at LIMIT 1),
       (SELECT clock_timestamp() - min(d.expires_at) FROM {schema}.dispatch d WHERE d.expires_at < clock_timestamp()),
       (SELECT clock_timestamp() - min(s.look_at) FROM {schema}.schedule s WHERE s.look_at < clock_timestamp()),
       ARRAY(SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhdetachpending AND c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = {literal}) ORDER BY 1);

-- name: health_stuck_weeks
-- Weeks whose last step towards their end failed.
SELECT ({schema}.run_id_time_v1(r.low) AT TIME ZONE 'UTC')::date, r.sqlstate, r.message FROM {schema}.retention r WHERE r.sqlstate IS NOT NULL ORDER BY 1;
