"""What is asked of a caller's connection before runs are recorded in its transaction."""

from __future__ import annotations

from typing import Any

from runlane.domain.errors import ContractError


def require_transaction(connection: Any) -> None:
    """Refuse a connection in autocommit: each statement would be a transaction of its own; `ContractError` `connection_autocommit`."""
    if getattr(connection, "autocommit", False):
        raise ContractError(
            "connection_autocommit",
            "connection: it is in autocommit, so the run would not share your transaction; open it with autocommit=False",
            meta={"field": "connection"},
        )
