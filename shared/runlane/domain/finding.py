"""What an examination finds: what is, why it matters, what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """`unseen`: this role may not look, so that nothing is known."""

    OK = "ok"
    UNSEEN = "unseen"
    WARNING = "warning"
    FAILURE = "failure"

    @property
    def is_wrong(self) -> bool:
        return self in (Level.WARNING, Level.FAILURE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report. `check` names what was looked at; `why` and `remedy` are empty when all is well."""

    check: str
    level: Level
    what: str
    why: str = ""
    remedy: str = ""
