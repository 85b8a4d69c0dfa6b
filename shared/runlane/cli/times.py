"""Points in time as people write them: "2h", or ISO 8601. Without a zone a time is UTC, as all times shown are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from runlane.domain.durations import parse_duration
from runlane.domain.errors import ContractError


def ago(text: str, option: str) -> datetime:
    """The time so long before now, or the one that is written out; errors name the option."""
    return written(text, option) if _is_written(text) else datetime.now(UTC) - _duration(text, option)


def written(text: str, option: str) -> datetime:
    """The ISO 8601 time that is written out; `ContractError` `time_invalid`."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _invalid(text, option, "no time; write it like 2026-01-31T08:00Z") from error


def iso(moment: datetime) -> str:
    """The same time for another command line, to the microsecond."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _is_written(text: str) -> bool:
    return "-" in text or ":" in text


def _duration(text: str, option: str) -> timedelta:
    try:
        return parse_duration(text, option)
    except ContractError as error:
        raise _invalid(text, option, "neither a duration like 90s, 2h or 7d nor a time like 2026-01-31T08:00Z") from error


def _invalid(text: str, option: str, fault: str) -> ContractError:
    return ContractError("time_invalid", f"{option}: {text[:80]!r} is {fault}", meta={"field": option})
