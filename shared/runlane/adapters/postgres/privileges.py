"""What a role lacks to migrate, in the words that give it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from runlane.domain.errors import ConfigurationError

_ASK = """
SELECT current_user, current_database(), pg_get_userbyid(n.nspowner), pg_has_role(n.nspowner, 'USAGE')
FROM (VALUES (%s)) AS wanted(name) LEFT JOIN pg_namespace n ON n.nspname = wanted.name
"""


@contextmanager
def privileges_explained(connection: psycopg.Connection, schema: str) -> Iterator[None]:
    """Turn "permission denied" into a `ConfigurationError` `privilege_missing` that says what to grant, and to whom."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigurationError(_remedy(connection, schema, error), code="privilege_missing") from error


def _remedy(connection: psycopg.Connection, schema: str, error: psycopg.Error) -> str:
    """Asked of the catalog: the server's own message may be in any language."""
    asked = connection.execute(_ASK, (schema,)).fetchone() or ("", "", None, True)
    user, database, owner, is_owner = asked
    role, names = sql.Identifier(user), {"database": sql.Identifier(database), "schema": sql.Identifier(schema)}
    if owner is None:
        command = sql.SQL("GRANT CREATE ON DATABASE {database} TO {role}").format(role=role, **names).as_string(connection)
        return f"the role {user!r} may not create schema {schema!r}; as an administrator run: {command}"
    if not is_owner:
        command = sql.SQL("GRANT {owner} TO {role}").format(owner=sql.Identifier(owner), role=role).as_string(connection)
        return f"schema {schema!r} belongs to the role {owner!r}; migrate as that role, or as an administrator run: {command}"
    return f"the role {user!r} lacks a privilege ({str(error).splitlines()[0]}); grant it, or migrate as the owner of schema {schema!r}"
