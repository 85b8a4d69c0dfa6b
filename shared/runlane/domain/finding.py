"""What an examination finds: what is, why it matters, what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """`warning`: it may become a failure, or make one worse. `unseen`: this role may not look, so that nothing is known."""

    OK = "ok"
    UNSEEN = "unseen"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report. `check` names what was looked at; `why` and `remedy` are empty when all is well."""

    check: str
    level: Level
    what: str
    why: str = ""
    remedy: str = ""
