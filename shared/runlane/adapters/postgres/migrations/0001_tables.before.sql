-- Storage of one environment. A run is written once (run), its end once (outcome), its history line by line (event).
-- What is in motion lives in exactly one small table: inbox, successor, waiting, timer, dispatch or lease; a status is read from there.
-- Reasons and figures: docs/decisions/0001-storage-and-dispatch.md.

CREATE TABLE {schema}.environment (
    name       text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The policy in force; only migrate writes it. occupied and slot_seq are kept while total_limit is set. polled_until: until then some
-- polling worker listens, and is told of what is dispatched. throttle_step to throttle_ahead: set together, or no throttle (0016).
CREATE TABLE {schema}.queue (
    queue_id          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name              text NOT NULL UNIQUE,
    concurrency_limit int,
    total_limit       int,
    dispatch_timeout  interval NOT NULL,
    dispatch_window   int NOT NULL,
    throttle_step     interval,
    throttle_burst    interval,
    throttle_slack    interval,
    throttle_ahead    interval,
    policy            json NOT NULL,
    paused_at         timestamptz,
    paused_parts      int NOT NULL DEFAULT 0,
    occupied          int NOT NULL DEFAULT 0,
    slot_seq          bigint NOT NULL DEFAULT 0,
    polled_until      timestamptz
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {schema}.policy_change (
    queue_id   int NOT NULL,
    changed_at timestamptz NOT NULL,
    actor      text,
    before     json,
    after      json NOT NULL
);

-- Sums over the shards are exact; a transaction adds its deltas to a shard that no other open transaction uses. turn: now and then a
-- shard goes on under the next turn, which is found first, so that versions that cannot be vacuumed yet do not stand in the way.
-- room: the shard's share of the window's room when it was last counted, good until room_until (take_room_v1).
CREATE TABLE {schema}.queue_counter (
    queue_id   int NOT NULL,
    shard      int NOT NULL,
    waiting    bigint NOT NULL DEFAULT 0,
    scheduled  bigint NOT NULL DEFAULT 0,
    dispatched bigint NOT NULL DEFAULT 0,
    running    bigint NOT NULL DEFAULT 0,
    vt         bigint NOT NULL DEFAULT 0,
    turn       int NOT NULL DEFAULT 0,
    room       int NOT NULL DEFAULT 0,
    room_until timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (queue_id, shard, turn)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- What joined transactions add without locking a shared row; the tick folds it into a shard.
CREATE TABLE {schema}.queue_counter_delta (
    queue_id  int NOT NULL,
    scheduled int NOT NULL
);

-- ready: may hold a ready partition. floor: virtual time of the last partition served, for newcomers among its partitions.
CREATE TABLE {schema}.tenant (
    tenant_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id  int NOT NULL,
    name      text NOT NULL,
    weight    int NOT NULL DEFAULT 1,
    vt        bigint NOT NULL DEFAULT 0,
    floor     bigint NOT NULL DEFAULT 0,
    ready     boolean NOT NULL DEFAULT false,
    paused_at timestamptz,
    UNIQUE (queue_id, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX tenant_ready ON {schema}.tenant (queue_id, vt, tenant_id) WHERE ready;

-- state: e empty, r ready, b blocked by its own limit, t throttled until ready_at, p paused. All but ready ones are in no index that a
-- dispatch walks. reserved: dispatch rows, kept on throttled queues. hinted_at: when a delayed wakeup comes that was sent ahead.
-- head: no waiting run of the partition has a lower score. A partition without a tenant is its own tenant, with its own weight.
CREATE TABLE {schema}.partition (
    partition_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id        int NOT NULL,
    tenant_id       bigint,
    tenant          text,
    concurrency_key text,
    weight          int NOT NULL DEFAULT 1,
    state           "char" NOT NULL DEFAULT 'e',
    vt              bigint NOT NULL DEFAULT 0,
    waiting         int NOT NULL DEFAULT 0,
    occupied        int NOT NULL DEFAULT 0,
    slot_seq        bigint NOT NULL DEFAULT 0,
    head            timestamptz NOT NULL DEFAULT '-infinity',
    paused_at       timestamptz,
    tenant_paused_at timestamptz,
    throttle_clock  timestamptz NOT NULL DEFAULT '-infinity',
    reserved        int NOT NULL DEFAULT 0,
    ready_at        timestamptz,
    hinted_at       timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX partition_key ON {schema}.partition (queue_id, (coalesce(tenant, '')), (coalesce(concurrency_key, '')));
CREATE INDEX partition_ready_solo ON {schema}.partition (queue_id, vt, partition_id) WHERE state = 'r' AND tenant_id IS NULL;
CREATE INDEX partition_ready ON {schema}.partition (tenant_id, vt, partition_id) WHERE state = 'r' AND tenant_id IS NOT NULL;
CREATE INDEX partition_throttled ON {schema}.partition (queue_id, ready_at) WHERE state = 't';

-- source: NULL for a plain trigger, else run_now, manual_retry, rerun or schedule; source_run_id stays when the run that it names is pruned.
CREATE TABLE {schema}.run (
    run_id          uuid NOT NULL,
    queue_id        int NOT NULL,
    task            text NOT NULL,
    tenant          text,
    concurrency_key text,
    priority        int NOT NULL DEFAULT 0,
    max_attempts    int NOT NULL,
    created_at      timestamptz NOT NULL,
    run_at          timestamptz NOT NULL,
    payload         json NOT NULL,
    idempotency_key text,
    singleton_key   text,
    start_timeout   interval,
    finish_timeout  interval,
    actor           text,
    trace           json,
    meta            json,
    source          text,
    source_run_id   uuid
) PARTITION BY RANGE (run_id);
CREATE INDEX run_task ON {schema}.run (task, run_id);
CREATE INDEX run_queue ON {schema}.run (queue_id, run_id);
CREATE INDEX run_tenant ON {schema}.run (tenant, run_id) WHERE tenant IS NOT NULL;
CREATE INDEX run_concurrency_key ON {schema}.run (concurrency_key, run_id) WHERE concurrency_key IS NOT NULL;
CREATE INDEX run_source ON {schema}.run (source, run_id) WHERE source IS NOT NULL;
-- The last: for a table that statistics call empty all indexes cost the same, and then the newest is taken. An index that ends with
-- run_id would be walked from end to end for each look-up; where the order can do without run_id, indexes leave it out.
ALTER TABLE {schema}.run ADD PRIMARY KEY (run_id);

CREATE TABLE {schema}.outcome (
    run_id   uuid PRIMARY KEY,
    status   text NOT NULL CHECK (status IN ('succeeded', 'failed', 'cancelled')),
    attempt  int NOT NULL,
    failures int NOT NULL,
    seq      int NOT NULL,
    ended_at timestamptz NOT NULL,
    due_at   timestamptz NOT NULL,
    result   json,
    failure  json
) PARTITION BY RANGE (run_id);
-- Success is the rule: a list of succeeded runs walks the ids, and a success writes one index less.
CREATE INDEX outcome_status ON {schema}.outcome (status, run_id) WHERE status <> 'succeeded';

CREATE TABLE {schema}.event (
    run_id         uuid NOT NULL,
    seq            int NOT NULL,
    type           text NOT NULL,
    at             timestamptz NOT NULL,
    attempt        int NOT NULL DEFAULT 0,
    partition_id   bigint,
    slot_seq       bigint,
    occupied       int,
    queue_slot_seq bigint,
    queue_occupied int,
    actor          text,
    data           json,
    PRIMARY KEY (run_id, seq)
) PARTITION BY RANGE (run_id);

-- Recorded by a caller's own transaction, not yet in any order.
CREATE TABLE {schema}.inbox (
    run_id   uuid PRIMARY KEY,
    queue_id int NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX inbox_queue ON {schema}.inbox (queue_id);

-- Due, and in the order of its partition: score is due_at less the priority.
CREATE TABLE {schema}.waiting (
    partition_id bigint NOT NULL,
    score        timestamptz NOT NULL,
    run_id       uuid NOT NULL,
    queue_id     int NOT NULL,
    due_at       timestamptz NOT NULL,
    priority     int NOT NULL,
    status       text NOT NULL,
    attempt      int NOT NULL,
    failures     int NOT NULL,
    seq          int NOT NULL,
    expiries     int NOT NULL,
    PRIMARY KEY (partition_id, score, run_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX waiting_run ON {schema}.waiting (run_id);

-- Due in the future. hinted_at: a delayed wakeup has been sent ahead. Each row is in one of two orders of due times, so that whoever sends
-- hints does not walk over what has its own.
CREATE TABLE {schema}.timer (
    run_id       uuid PRIMARY KEY,
    queue_id     int NOT NULL,
    due_at       timestamptz NOT NULL,
    priority     int NOT NULL,
    status       text NOT NULL,
    attempt      int NOT NULL,
    failures     int NOT NULL,
    seq          int NOT NULL,
    hinted_at    timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX timer_hinted ON {schema}.timer (due_at) WHERE hinted_at IS NOT NULL;
CREATE INDEX timer_unhinted ON {schema}.timer (due_at) WHERE hinted_at IS NULL;

-- At most one row. due_at: what was due before it has been seen to, but for what was committed late, which each tick looks back for. Scans
-- begin there: entries of timers that have gone stay at the front of an index for as long as any snapshot is held. hinted_to: where the
-- look-ahead goes on. cut_at: since when one bounded step after the other is cut off by its bound; NULL: the last one saw all.
CREATE TABLE {schema}.timer_floor (
    is_only   boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    due_at    timestamptz NOT NULL,
    hinted_to timestamptz NOT NULL,
    cut_at    timestamptz
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);

-- The reservation and the outbox row in one. dispatch_seq is the fair order in which they were made. start_at: no start before it, set
-- on throttled queues.
CREATE TABLE {schema}.dispatch (
    run_id             uuid PRIMARY KEY,
    dispatch_seq       bigint GENERATED ALWAYS AS IDENTITY,
    queue_id           int NOT NULL,
    partition_id       bigint,
    due_at             timestamptz NOT NULL,
    priority           int NOT NULL,
    status             text NOT NULL,
    attempt            int NOT NULL,
    failures           int NOT NULL,
    seq                int NOT NULL,
    expiries           int NOT NULL,
    dispatched_at      timestamptz NOT NULL,
    start_at           timestamptz,
    expires_at         timestamptz NOT NULL,
    publish_status     text NOT NULL DEFAULT 'claimed'
        CHECK (publish_status IN ('pending', 'claimed', 'published', 'failed', 'dead_lettered')),
    publish_attempts   int NOT NULL DEFAULT 1,
    publish_claimed_at timestamptz NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX dispatch_order ON {schema}.dispatch (queue_id, dispatch_seq);

-- Where a queue's oldest unclaimed dispatch rows begin, the greatest counts: a hint, which spares a look at what is dead but cannot be
-- vacuumed yet. Never a filter to rely on: a row may be committed below it.
CREATE TABLE {schema}.dispatch_floor (
    queue_id     int NOT NULL,
    dispatch_seq bigint NOT NULL,
    PRIMARY KEY (queue_id, dispatch_seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX dispatch_start ON {schema}.dispatch (queue_id, start_at) WHERE start_at IS NOT NULL;

CREATE TABLE {schema}.lease (
    run_id              uuid PRIMARY KEY,
    token               uuid NOT NULL,
    queue_id            int NOT NULL,
    partition_id        bigint,
    due_at              timestamptz NOT NULL,
    priority            int NOT NULL,
    status              text NOT NULL,
    attempt             int NOT NULL,
    failures            int NOT NULL,
    seq                 int NOT NULL,
    expires_at          timestamptz NOT NULL,
    cancel_requested_at timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {schema}.idempotency_key (
    task         text NOT NULL,
    key          text NOT NULL,
    run_id       uuid NOT NULL,
    expires_at   timestamptz,
    payload_hash text,
    PRIMARY KEY (task, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- Owners by their age: a week that is dropped frees its keys.
CREATE INDEX idempotency_key_run ON {schema}.idempotency_key (run_id);

-- The active run of each key. Its row is locked by whoever ends that run or gives it a successor; it goes with the last of them.
CREATE TABLE {schema}.singleton_key (
    task   text NOT NULL,
    key    text NOT NULL,
    run_id uuid NOT NULL,
    PRIMARY KEY (task, key)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX singleton_key_run ON {schema}.singleton_key (run_id);

-- Held until the active run of its key ends. place: the order of the triggers; the greatest is the newest, and the others are
-- superseded. recorded: by a transaction that does not hold the key, so the older ones are still to be superseded and, if it cancels,
-- the active run is still to be stopped.
CREATE TABLE {schema}.successor (
    run_id   uuid PRIMARY KEY,
    task     text NOT NULL,
    key      text NOT NULL,
    place    bigint GENERATED ALWAYS AS IDENTITY,
    queue_id int NOT NULL,
    due_at   timestamptz NOT NULL,
    priority int NOT NULL,
    status   text NOT NULL DEFAULT 'queued',
    seq      int NOT NULL,
    recorded boolean NOT NULL,
    cancels  boolean NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX successor_key ON {schema}.successor (task, key, place);
CREATE INDEX successor_queue ON {schema}.successor (queue_id);
CREATE INDEX successor_recorded ON {schema}.successor (place) WHERE recorded;

-- A start or finish time-out to look at when its time has come.
CREATE TABLE {schema}.deadline (
    at     timestamptz NOT NULL,
    run_id uuid NOT NULL,
    kind   text NOT NULL CHECK (kind IN ('start', 'finish')),
    PRIMARY KEY (at, run_id, kind)
);
CREATE INDEX deadline_run ON {schema}.deadline (run_id);

-- What a statement tells its caller: what became of a run, and which wakeups to publish.
CREATE TYPE {schema}.effect AS (
    kind            text,
    ord             int,
    run_id          uuid,
    verdict         text,
    queue           text,
    tenant          text,
    concurrency_key text,
    due_at          timestamptz,
    due_in          interval,
    detail          json
);

-- A run on its way from one small table to another.
CREATE TYPE {schema}.motion AS (
    run_id       uuid,
    partition_id bigint,
    due_at       timestamptz,
    priority     int,
    status       text,
    attempt      int,
    failures     int,
    seq          int,
    expiries     int
);

-- A successor of a run that may be about to end. is_next: the newest; joins: and it enters the order of the queue at hand.
CREATE TYPE {schema}.heir AS (
    owner_id uuid,
    run_id   uuid,
    queue_id int,
    due_at   timestamptz,
    priority int,
    seq      int,
    is_next  boolean,
    joins    boolean
);
