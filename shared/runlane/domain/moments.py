"""Points in time that callers give."""

from __future__ import annotations

from datetime import UTC, datetime

from runlane.domain.errors import ContractError
from runlane.domain.shown import shown

FIRST_YEAR, LAST_YEAR = 2, 9998


def to_utc(value: object, field: str) -> datetime:
    """An aware time in UTC, so far from the ends of Python's calendar that every zone can read it back; `ContractError`."""
    try:
        found = value.astimezone(UTC) if isinstance(value, datetime) and value.utcoffset() is not None else None
    except Exception as error:  # A time zone is anybody's code.
        raise _invalid(field, f"its time in UTC cannot be told ({type(error).__name__}); give datetime.now(UTC), or one near it") from error
    if found is None:
        raise _invalid(field, f"{shown(value)} is not a datetime with a time zone; give an aware one, e.g. datetime.now(UTC)")
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise _invalid(field, f"{found:%Y-%m-%d} is out of range; give the years {FIRST_YEAR} to {LAST_YEAR}")
    return found


def _invalid(field: str, fault: str) -> ContractError:
    return ContractError("option_invalid", f"{field}: {fault}", meta={"field": field})
