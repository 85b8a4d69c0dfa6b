"""Time partitions as the driver sees them."""

from __future__ import annotations

import psycopg

WEEKS_AHEAD = 4


def lacks_partition(error: psycopg.Error) -> bool:
    """Whether no partition took a row. Told by what is absent, since the message may be in any language: no constraint was violated."""
    return isinstance(error, psycopg.errors.CheckViolation) and error.diag.constraint_name is None
