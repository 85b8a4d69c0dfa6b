"""Checks of the database: its server, its schema, what hinders vacuum, ids, partitions and maintenance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from runlane.domain.durations import format_duration
from runlane.domain.errors import RunlaneError
from runlane.domain.finding import Finding, Level
from runlane.ports.health import Health, HorizonHolder, SchemaState
from runlane.ports.schedules import StoredSchedule
from runlane.services.doctor import Check, bounds
from runlane.services.doctor.bounds import graded
from runlane.services.schedules.fires import readable

_OF_SCHEDULE = "schedule "
"""How a difference begins that is one of a schedule."""


def database_checks(
    health: Health,
    *,
    environment: str,
    migrations: Mapping[int, str],
    now: Callable[[], datetime],
    manual: Collection[int] = (),
    after: Collection[int] = (),
    before_deploy: bool = False,
) -> tuple[tuple[str, Check], ...]:
    """`migrations`: titles of this release's, by number; `manual`: those that no deploy applies; `after`: those that remove what is no
    longer used. `now`: the clock of this process. `before_deploy`: look only at what this release needs in order to be deployed.
    """
    server = (
        ("server", partial(_server, health, now)),
        ("settings", partial(_settings, health)),
        ("horizon", partial(_horizon, health)),
        ("transaction ids", partial(_id_ages, health)),
        # What comes after needs the schema.
        ("schema", partial(_deployable if before_deploy else _schema, health, environment, migrations, manual, after)),
    )
    if before_deploy:
        return server
    return (
        *server,
        ("dead rows", partial(_dead_rows, health)),
        ("autovacuum", partial(_autovacuum, health)),
        ("partitions", partial(_partitions, health)),
        ("maintenance", partial(_maintenance, health)),
        ("retention", partial(_retention, health)),
    )


def _server(health: Health, now: Callable[[], datetime]) -> Iterator[Finding]:
    before = now()
    server = health.server()
    offset = abs(server.now - (before + (now() - before) / 2))
    yield Finding("server", Level.OK, f"Postgres {server.version}, as role {server.role}")
    what = (
        f"the database's clock and this machine's differ by {format_duration(offset)}"
        if offset > bounds.CLOCK_WARNS
        else "agrees with ours"
    )
    yield graded(
        "clock", offset, bounds.CLOCK_WARNS, bounds.CLOCK_FAILS, what,
        "the database's clock decides what is due; whoever gives a run_at by another clock is early or late by as much",
        "let a time service set both clocks",
    )  # fmt: skip
    used = f"{server.connections} of {server.most_connections} connections are in use"
    yield graded(
        "connections", server.connections / max(1, server.most_connections), bounds.CONNECTIONS_WARN, 1.0, used,
        "each worker environment holds up to two; the next ones are refused, and their deliveries come back",
        "lower WorkerMaximumConcurrency, raise max_connections, or connect through RDS Proxy or pgbouncer",
    )  # fmt: skip


def _schema(
    health: Health, environment: str, migrations: Mapping[int, str], manual: Collection[int], after: Collection[int]
) -> Iterator[Finding]:
    schema = health.schema()
    yield from _owner(schema, environment)
    missing = [title for number, title in migrations.items() if number not in schema.applied and number not in after]
    if missing:
        why = "this release calls functions that are not there"
        yield Finding("schema", Level.FAILURE, f"lacks {', '.join(missing)}", why, "run `runlane migrate`")
    elif ahead := schema.applied - set(migrations):
        yield Finding(
            "schema", Level.WARNING, f"has {len(ahead)} migrations that this release does not know",
            "a newer release migrated it; this one runs on it, but knows nothing of what is new", "deploy the newer release here, too",
        )  # fmt: skip
    else:
        yield Finding("schema", Level.OK, "is the one of this release")
    if forgotten := [migrations[number] for number in after if number in manual and number not in schema.applied]:
        yield Finding(
            "schema", Level.WARNING, f"still has what {', '.join(forgotten)} removes", "no deploy does it, as it may take long",
            "once no release is left that uses it, run `runlane migrate --phase after`",
        )  # fmt: skip


def _deployable(
    health: Health, environment: str, migrations: Mapping[int, str], manual: Collection[int], after: Collection[int]
) -> Iterator[Finding]:
    try:
        schema = health.schema()
    except RunlaneError as error:
        if error.code != "schema_missing":
            raise
        yield Finding("schema", Level.OK, "is not there yet; the deploy makes it")
        return
    yield from _owner(schema, environment)
    missing = [number for number in migrations if number not in schema.applied and number not in after]
    if blocking := [migrations[number] for number in missing if number in manual]:
        yield Finding(
            "schema", Level.FAILURE, f"lacks {', '.join(blocking)}, which may take longer than a deploy",
            "the deploy would stop there; the release that runs works on the new schema meanwhile",
            "run `runlane migrate --phase before` of this release by hand, with the login that owns the schema",
        )  # fmt: skip
    else:
        applied = ", ".join(migrations[number] for number in missing)
        yield Finding("schema", Level.OK, f"the deploy applies {applied}" if applied else "is the one of this release")


def _owner(schema: SchemaState, environment: str) -> Iterator[Finding]:
    if schema.environment not in (environment, None):
        yield Finding(
            "environment", Level.FAILURE, f"the schema belongs to environment {schema.environment!r}, and this one is {environment!r}",
            "its wakeups are refused here, and ours there", "set RUNLANE_ENVIRONMENT or RUNLANE_SCHEMA to the ones that belong together",
        )  # fmt: skip


def _settings(health: Health) -> Iterator[Finding]:
    server = health.server()
    for name, value, least in (
        ("idle_in_transaction_session_timeout", server.idle_in_transaction_timeout, "60s"),
        ("statement_timeout", server.statement_timeout, "60s"),
    ):
        if value is None:
            yield Finding(
                "settings", Level.WARNING, f"{name} is off for role {server.role}",
                "a session that hangs, as of a frozen sandbox, keeps its locks, and keeps vacuum from old rows, for as long as it likes",
                f"ALTER ROLE {server.role} SET {name} = '{least}'",
            )  # fmt: skip
        else:
            yield Finding("settings", Level.OK, f"{name} is {format_duration(value)}")


def _horizon(health: Health) -> Iterator[Finding]:
    server, holders = health.server(), health.horizon()
    wrong = [(level, holder) for holder in holders if (level := _hold(holder)) is not Level.OK]
    for level, holder in wrong:
        since = "" if holder.held_for is None else f", since {format_duration(_whole(holder.held_for))}"
        yield Finding(
            "horizon", level, f"{holder.kind} {holder.name} holds back vacuum by {holder.age:,} transactions{since}",
            "no table can lose its dead rows meanwhile, so the queue's own tables grow and every claim slows down",
            f"end it: {holder.remedy}" if holder.remedy.isupper() or "SELECT" in holder.remedy else holder.remedy,
        )  # fmt: skip
    if not wrong:
        yield Finding("horizon", Level.OK, "nothing holds back vacuum")
    if not server.sees_others:
        yield Finding(
            "horizon", Level.UNSEEN, "how long other roles' sessions have lasted, and which standbys there are",
            remedy=f"GRANT pg_read_all_stats TO {server.role}",
        )  # fmt: skip


def _hold(holder: HorizonHolder) -> Level:
    """By time where it is known, else by the transactions since."""
    if holder.held_for is not None:
        return (
            Level.FAILURE
            if holder.held_for >= bounds.HORIZON_FAILS
            else Level.WARNING
            if holder.held_for >= bounds.HORIZON_WARNS
            else Level.OK
        )
    return Level.FAILURE if holder.age >= bounds.XIDS_FAIL else Level.WARNING if holder.age >= bounds.XIDS_WARN else Level.OK


def _dead_rows(health: Health) -> Iterator[Finding]:
    tables = health.tables()
    heavy = [table for table in tables if table.dead_rows >= bounds.DEAD_ROWS_WARN]
    for table in heavy:
        yield graded(
            "dead rows", table.dead_rows, bounds.DEAD_ROWS_WARN, bounds.DEAD_ROWS_FAIL, f"{table.name} has {table.dead_rows:,} dead rows",
            "claims step over them; vacuum is held back, too slow, or off", f"see horizon and autovacuum above; then VACUUM {table.name}",
        )  # fmt: skip
    if not heavy:
        yield Finding("dead rows", Level.OK, f"{max((table.dead_rows for table in tables), default=0):,} in a table at most")


def _autovacuum(health: Health) -> Iterator[Finding]:
    off = [] if health.server().autovacuum else ["the server"]
    off += [table.name for table in health.tables() if not table.autovacuum]
    if off:
        why = "tables whose rows come and go every second keep every row that ever was, until the server stops at its last transaction id"
        yield Finding("autovacuum", Level.FAILURE, f"is off for {', '.join(off)}", why, "switch it on: autovacuum, autovacuum_enabled")
    else:
        yield Finding("autovacuum", Level.OK, "is on")


def _id_ages(health: Health) -> Iterator[Finding]:
    ages = health.id_ages()
    for what, age, database in (("transaction", ages.xid_age, ages.xid_database), ("multixact", ages.mxid_age, ages.mxid_database)):
        yield graded(
            f"{what} ids", age, bounds.IDS_WARN, bounds.IDS_FAIL, f"the oldest in use are {age:,} old, in database {database!r}",
            "at 2.1 billion the server refuses every write", "VACUUM (FREEZE) that database; if it does not help, see horizon",
        )  # fmt: skip


def _partitions(health: Health) -> Iterator[Finding]:
    gaps: dict[int, list[str]] = {}
    for gap in health.partition_gaps():
        gaps.setdefault(gap.weeks_ahead, []).append(gap.table)
    for ahead, tables in gaps.items():
        yield Finding(
            "partitions", Level.FAILURE if ahead <= bounds.NEAR else Level.WARNING,
            f"{', '.join(tables)}: none for {'this week' if ahead == 0 else f'the week in {ahead}'}",
            "maintenance makes them four weeks ahead, so it has not run for long; a trigger then has to make its own",
            "run `runlane tick`, and see that its schedule is on",
        )  # fmt: skip
    if not gaps:
        yield Finding("partitions", Level.OK, "are there for the weeks ahead")
    for name in health.upkeep().pending_detaches:
        yield Finding(
            "partitions", Level.WARNING, f"{name} is being detached, and waits for transactions that began before",
            "its space is not given back until then", "see horizon; maintenance finishes it by itself",
        )  # fmt: skip


def _maintenance(health: Health) -> Iterator[Finding]:
    upkeep = health.upkeep()
    why, remedy = (
        "recovery, timers and retention wait for it",
        "see that its schedule is on, and that the function does not fail; or run `runlane tick`",
    )
    if upkeep.ticked_for is None:
        yield Finding("maintenance", Level.WARNING, "has never run", why, remedy)
    else:
        what = f"ran {format_duration(_whole(upkeep.ticked_for))} ago"
        yield (
            Finding("maintenance", Level.FAILURE, what, why, remedy)
            if upkeep.ticked_for > bounds.MISSED_AFTER
            else Finding("maintenance", Level.OK, what)
        )
    if upkeep.failed_phases:
        yield Finding(
            "maintenance", Level.FAILURE, f"failed in its last pass: {', '.join(upkeep.failed_phases)}",
            "what these phases do is not done", "its log has a line `phase.failed` with the error for each; `runlane tick` tries again",
        )  # fmt: skip
    for late, what in (
        (upkeep.overdue_timer, "the oldest timer is due"),
        (upkeep.overdue_dispatch, "the oldest unclaimed dispatch expired"),
        (upkeep.overdue_schedule, "a schedule should have been looked at"),
    ):
        if late is not None and late > bounds.LATE_AFTER:
            yield Finding("maintenance", Level.FAILURE, f"{what} since {format_duration(_whole(late))}", why, remedy)


def _retention(health: Health) -> Iterator[Finding]:
    stuck = health.stuck_weeks()
    for one in stuck:
        yield Finding(
            "retention", Level.FAILURE, f"the week of {one.week} cannot be dropped: {one.message} ({one.sqlstate})",
            "its runs are kept past their time, and its space is not given back",
            "drop or detach what the message names; maintenance tries again every hour",
        )  # fmt: skip
    if not stuck:
        yield Finding("retention", Level.OK, "no week is kept past its time by a fault")


def catalog_checks(
    drift: Callable[[], Sequence[str]],
    stored: Callable[[], Collection[str]],
    known: Collection[str],
    schedules: Callable[[], Sequence[StoredSchedule]],
) -> tuple[tuple[str, Check], ...]:
    """`drift`: what differs between the code's policies and schedules and the stored ones. `stored`, `known`: names of queues there, and
    here. `schedules`: those in force."""
    return ("queues", partial(_queues, drift, stored, known)), ("schedules", partial(_schedules, drift, schedules))


def _queues(drift: Callable[[], Sequence[str]], stored: Callable[[], Collection[str]], known: Collection[str]) -> Iterator[Finding]:
    strangers = sorted(set(stored()) - set(known))
    differences = [difference for difference in drift() if not difference.startswith(_OF_SCHEDULE)]
    for difference in differences:
        yield Finding("queues", Level.WARNING, difference, "dispatch obeys the stored policy, not the code's", "run `runlane migrate`")
    for name in strangers:
        yield Finding(
            "queues", Level.WARNING, f"queue {name!r} is stored, and the application does not have it",
            "runs that wait in it are started by nobody", f"register it again, or cancel what waits: `runlane runs list --queue {name}`",
        )  # fmt: skip
    if not differences and not strangers:
        yield Finding("queues", Level.OK, "are in force as the code has them")


def _schedules(drift: Callable[[], Sequence[str]], schedules: Callable[[], Sequence[StoredSchedule]]) -> Iterator[Finding]:
    differences = [difference for difference in drift() if difference.startswith(_OF_SCHEDULE)]
    for difference in differences:
        yield Finding("schedules", Level.WARNING, difference, "ticks fire the stored schedule, not the code's", "run `runlane migrate`")
    unreadable = [one.schedule_id for one in schedules() if readable(one.timing) is None]
    for name in unreadable:
        yield Finding(
            "schedules", Level.FAILURE, f"schedule {name!r} cannot be read here: a newer release's, or a time zone that is unknown here",
            "where it cannot be read it does not fire", "deploy the newer release here, too, and the tzdata of that one",
        )  # fmt: skip
    if not differences and not unreadable:
        yield Finding("schedules", Level.OK, "are in force as the code has them")


def _whole(duration: timedelta) -> timedelta:
    """In seconds, as nobody reads more of it."""
    return timedelta(seconds=round(duration.total_seconds()))
