"""What a migrated database holds, and how to bring it back to that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
from psycopg import sql

FEW = 300
# Whoever changes, adds or drops an object of the database writes a row of one of these, with a transaction id of its own.
_CATALOGS: tuple[LiteralString, ...] = (
    "pg_attrdef",
    "pg_attribute",
    "pg_class",
    "pg_constraint",
    "pg_default_acl",
    "pg_event_trigger",
    "pg_extension",
    "pg_index",
    "pg_inherits",
    "pg_namespace",
    "pg_policy",
    "pg_proc",
    "pg_rewrite",
    "pg_statistic_ext",
    "pg_trigger",
    "pg_type",
)
_TABLES: LiteralString = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r' ORDER BY 1"
_SETTINGS: LiteralString = (
    "SELECT count(*) FROM pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


@dataclass(frozen=True, slots=True)
class Contents:
    """kept: tables with rows of the migrations. emptied: the others. objects, rows: what must be the same as before."""

    schema: str
    kept: tuple[str, ...]
    emptied: tuple[str, ...]
    objects: tuple[Any, ...]
    rows: tuple[Any, ...]

    @classmethod
    def read(cls, connection: psycopg.Connection, schema: str) -> Contents:
        """Of a database that was just migrated."""
        tables = tuple(name for (name,) in connection.execute(_TABLES, (sql.Identifier(schema).as_string(connection),)))
        written = {table for table, _ in _written(connection, schema, tables)}
        kept = tuple(table for table in tables if table in written)
        emptied = tuple(table for table in tables if table not in written)
        return cls(schema, kept, emptied, _objects(connection), _rows(connection, schema, kept))

    def restore(self, connection: psycopg.Connection) -> Contents | None:
        """Delete what was written since; the contents afterwards, or None: more than rows has changed, so make another database."""
        if _objects(connection) != self.objects or _rows(connection, self.schema, self.kept) != self.rows:
            return None
        written = _written(connection, self.schema, self.emptied)
        for table, is_large in written:
            # Truncating makes new files for a table and each of its indexes: for few rows that costs more than deleting them.
            statement = sql.SQL("TRUNCATE {}") if is_large else sql.SQL("DELETE FROM {}")
            connection.execute(statement.format(sql.Identifier(self.schema, table)))
        return replace(self, objects=_objects(connection)) if any(is_large for _, is_large in written) else self


def _written(connection: psycopg.Connection, schema: str, tables: tuple[str, ...]) -> list[tuple[str, bool]]:
    """Tables with rows, and whether there are many."""
    look = sql.SQL("SELECT {}, EXISTS (SELECT 1 FROM {} OFFSET {}) WHERE EXISTS (SELECT 1 FROM {})")
    looks = [look.format(table, name := sql.Identifier(schema, table), FEW, name) for table in tables]
    return connection.execute(sql.SQL(" UNION ALL ").join(looks)).fetchall()


def _objects(connection: psycopg.Connection) -> tuple[Any, ...]:
    """Changes with every object that is made, changed or dropped."""
    look = sql.SQL("(SELECT count(*) || '/' || coalesce(max(xmin::text::bigint), 0) FROM {})")
    looks = [*(look.format(sql.Identifier("pg_catalog", name)) for name in _CATALOGS), sql.SQL("({})").format(sql.SQL(_SETTINGS))]
    return connection.execute(sql.SQL("SELECT {}").format(sql.SQL(", ").join(looks))).fetchone() or ()


def _rows(connection: psycopg.Connection, schema: str, tables: tuple[str, ...]) -> tuple[Any, ...]:
    look = sql.SQL("(SELECT md5(string_agg(row::text, ',' ORDER BY row::text)) FROM {} row)")
    looks = [look.format(sql.Identifier(schema, table)) for table in tables]
    return connection.execute(sql.SQL("SELECT {}").format(sql.SQL(", ").join(looks))).fetchone() or ()
