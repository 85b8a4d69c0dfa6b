"""Migrations: numbered SQL, forward only, each marked before- or after-deploy, safe twice at once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, LiteralString

import psycopg
from psycopg import sql

from runlane.adapters.postgres.partitions import WEEKS_AHEAD
from runlane.adapters.postgres.privileges import privileges_explained
from runlane.adapters.postgres.statements import into_schema, quote_schema
from runlane.domain.errors import ConfigurationError

Phase = Literal["before", "after"]
_LOCK = 1919317612
_GRANTS: tuple[LiteralString, ...] = (
    "GRANT USAGE ON SCHEMA {schema} TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
    "REVOKE INSERT, UPDATE, DELETE ON {schema}.migration, {schema}.announced_migration, {schema}.environment FROM {role}",
    "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}",
)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file `NNNN_what.phase.sql`: `before` runs ahead of the code that needs it, `after` when no code is left that needs what it takes.

    `NNNN_what.phase.manual.sql`: it may take longer than a function's 15 minutes on a large database, so that no deploy applies it.
    """

    number: int
    name: str
    phase: Phase
    text: str
    manual: bool = False

    @property
    def title(self) -> str:
        return f"{self.number:04d}_{self.name}"

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def load_migrations() -> tuple[Migration, ...]:
    """All migrations of this release, in order."""
    return tuple(
        _parse(file.name, file.read_text(encoding="utf-8"))
        for file in sorted(files(__package__).joinpath("migrations").iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    )


def _parse(name: str, text: str) -> Migration:
    number, rest = name.split("_", 1)
    title, phase, *marks, _ = rest.split(".")
    if phase not in ("before", "after"):
        raise ValueError(f"migration {name}: its phase is not before or after")
    if marks not in ([], ["manual"]):
        raise ValueError(f"migration {name}: {'.'.join(marks)} is no mark; only manual is one")
    return Migration(int(number), title, "before" if phase == "before" else "after", text, bool(marks))


def migrate(
    connection: psycopg.Connection,
    *,
    schema: str,
    environment: str,
    phase: Phase | None = None,
    release: str | None = None,
    previous: str | None = None,
) -> tuple[str, ...]:
    """Apply what is pending, in one transaction each, and make time partitions; the names applied.

    `release`: the one that is deployed; None when a person migrates, who applies all of the phase. A deploy applies no manual ones, but to
    a new schema, which has no rows yet. Of those of phase `after` it applies what the release before, `previous`, has announced, and
    announces the rest: that release, to which a failed deploy goes back, may still use what they remove.

    Raises `ConfigurationError`: `migration_edited` when an applied one has another text, `migration_manual` when a deploy needs one that
    only a person applies, `privilege_missing` with the GRANT that the role lacks, or when the schema is another environment's.
    """
    with privileges_explained(connection, schema):
        _prepare(connection, schema)
        chosen = [migration for migration in load_migrations() if phase in (None, migration.phase)]
        if release is not None:
            chosen = [migration for migration in chosen if _is_due(connection, schema, migration, release, previous)]
            _refuse_manual(connection, schema, chosen)
        applied = tuple(migration.title for migration in chosen if _apply(connection, schema, migration))
        _claim_schema(connection, schema, environment)
    return applied


def _is_due(connection: psycopg.Connection, schema: str, migration: Migration, release: str, previous: str | None) -> bool:
    """Whether this deploy may apply it; if not, it is announced. What a release announced that was taken back does not count."""
    if migration.phase == "before":
        return True
    with connection.transaction():
        row = connection.execute(
            into_schema(
                "INSERT INTO {schema}.announced_migration AS a (number, release) VALUES (%s, %s)"
                " ON CONFLICT (number) DO UPDATE SET release = CASE a.release WHEN %s THEN a.release ELSE excluded.release END"
                " RETURNING coalesce(a.release = %s, false)",
                schema,
            ).encode(),
            (migration.number, release, previous, previous),
        ).fetchone()
    # A manual one stays for the doctor to tell: nothing needs it.
    return bool(row and row[0]) and not migration.manual


def _refuse_manual(connection: psycopg.Connection, schema: str, chosen: Sequence[Migration]) -> None:
    missing = set(pending(connection, schema=schema))
    manual = [migration.title for migration in chosen if migration.manual and migration.title in missing]
    is_new = len(missing) == len(load_migrations())
    if manual and not is_new:
        raise ConfigurationError(
            f"migrations {', '.join(manual)} may take longer than a deploy: run `runlane migrate` of this release by hand, with the login "
            "that owns the schema, and deploy again; the release that runs goes on meanwhile",
            code="migration_manual",
        )


def grant(connection: psycopg.Connection, *, schema: str, role: str) -> None:
    """Let the runtime's role use the schema: read and write rows, call functions, own nothing. Safe to repeat."""
    names = {"schema": sql.Identifier(schema), "role": sql.Identifier(role)}
    try:
        with privileges_explained(connection, schema), connection.transaction():
            for statement in _GRANTS:
                connection.execute(sql.SQL(statement).format(**names))
    except psycopg.errors.UndefinedObject as error:
        raise ConfigurationError(f"RUNLANE_DATABASE_ROLE: the database has no role {role!r}; create it first") from error


def make_role(connection: psycopg.Connection, *, role: str, password: str) -> None:
    """Let the runtime's role log in with this password, and make it if it is not there. Safe to repeat.

    The server and its log see only the password's SCRAM verifier. What hangs in a session of the role ends after a minute.
    """
    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    name = sql.Identifier(role)
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, -1)", (_LOCK,))
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
                for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
                    connection.execute(sql.SQL("ALTER ROLE {} SET {} = '60s'").format(name, sql.Identifier(setting)))
            connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(verifier)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigurationError(
            f"RUNLANE_DATABASE_ROLE: this login may not make the role {role!r}; let an administrator make it, or give this login CREATEROLE"
        ) from error


def pending(connection: psycopg.Connection, *, schema: str) -> tuple[str, ...]:
    """The migrations of this release that the schema lacks."""
    with connection.transaction():
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{quote_schema(schema)}.migration",)).fetchone()
        numbers = set()
        if row and row[0]:
            numbers = {number for (number,) in connection.execute(into_schema("SELECT number FROM {schema}.migration", schema).encode())}
    return tuple(migration.title for migration in load_migrations() if migration.number not in numbers)


def _prepare(connection: psycopg.Connection, schema: str) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s, -1)", (_LOCK,))
        # An owner of the schema need not be one who may create schemas, and IF NOT EXISTS asks for that right even if it exists.
        if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
            connection.execute(into_schema("CREATE SCHEMA {schema}", schema).encode())
        connection.execute(
            into_schema(
                "CREATE TABLE IF NOT EXISTS {schema}.migration (number int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,"
                " applied_at timestamptz NOT NULL DEFAULT now())",
                schema,
            ).encode()
        )
        connection.execute(
            into_schema(
                "CREATE TABLE IF NOT EXISTS {schema}.announced_migration (number int PRIMARY KEY, release text NOT NULL,"
                " announced_at timestamptz NOT NULL DEFAULT now())",
                schema,
            ).encode()
        )


def _apply(connection: psycopg.Connection, schema: str, migration: Migration) -> bool:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s, -1)", (_LOCK,))
        row = connection.execute(
            into_schema("SELECT checksum FROM {schema}.migration WHERE number = %s", schema).encode(), (migration.number,)
        ).fetchone()
        if row:
            if row[0] != migration.checksum:
                raise ConfigurationError(
                    f"migration {migration.title} was applied with another text; applied migrations are never edited: "
                    "restore the file, or begin with a new schema",
                    code="migration_edited",
                )
            return False
        connection.execute(into_schema(migration.text, schema).encode())
        connection.execute(
            into_schema("INSERT INTO {schema}.migration (number, name, checksum) VALUES (%s, %s, %s)", schema).encode(),
            (migration.number, migration.name, migration.checksum),
        )
        return True


def _claim_schema(connection: psycopg.Connection, schema: str, environment: str) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s, -1)", (_LOCK,))
        connection.execute(
            into_schema(
                "INSERT INTO {schema}.environment (name) SELECT %s WHERE NOT EXISTS (SELECT 1 FROM {schema}.environment)", schema
            ).encode(),
            (environment,),
        )
        row = connection.execute(into_schema("SELECT name FROM {schema}.environment", schema).encode()).fetchone()
        if row and row[0] != environment:
            raise ConfigurationError(
                [f"schema {schema!r} belongs to environment {row[0]!r}, not {environment!r}; give each environment a schema of its own"]
            )
        connection.execute(into_schema("SELECT {schema}.ensure_partitions_v1(now(), %s)", schema).encode(), (WEEKS_AHEAD,))
