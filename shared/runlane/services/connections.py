"""What is asked of a caller's connection before runs are recorded in its transaction."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any

from runlane.domain.errors import ConflictError, ContractError


def require_transaction(connection: Any) -> None:
    """Refuse what is no connection, one in autocommit, whose statements would be transactions of their own, and one whose transaction
    has failed; `ContractError` `connection_invalid` or `connection_autocommit`, `ConflictError` `transaction_failed`.
    """
    if not all(callable(getattr(connection, verb, None)) for verb in ("cursor", "commit", "rollback")):
        raise ContractError(
            "connection_invalid",
            f"connection: {type(connection).__name__} is no psycopg connection; give the one that your transaction runs on",
            meta={"field": "connection"},
        )
    if iscoroutinefunction(connection.commit):
        raise ContractError(
            "connection_invalid",
            f"connection: {type(connection).__name__} is asynchronous; trigger on a psycopg.Connection, in a thread (asyncio.to_thread)",
            meta={"field": "connection"},
        )
    if getattr(connection, "autocommit", False):
        raise ContractError(
            "connection_autocommit",
            "connection: it is in autocommit, so the run would not share your transaction; open it with autocommit=False",
            meta={"field": "connection"},
        )
    require_unbroken(connection)


def require_unbroken(connection: Any) -> None:
    """Refuse to commit a transaction in which a statement has failed: Postgres would answer with a rollback and no error.

    Raises `ConflictError` `transaction_failed`.
    """
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if getattr(status, "name", None) == "INERROR":
        raise ConflictError(
            "transaction_failed",
            "connection: a statement of its transaction has failed, so nothing of it can be committed; let the error leave the block, "
            "or guard the statement with a savepoint",
        )
