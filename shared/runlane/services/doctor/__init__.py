"""An examination: checks one after another, up to one without which the others could tell nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from runlane.domain.errors import RunlaneError, UnavailableError
from runlane.domain.finding import Finding, Level

Check = Callable[[], Iterable[Finding]]
"""Finds one or more; raising a `RunlaneError` is a finding, too."""


_ENDS = ("schema_missing", "privilege_missing")
"""Whatever comes after would say the same."""


@dataclass(frozen=True, slots=True)
class Report:
    """`is_well`: nothing fails, as far as could be seen; there may be warnings."""

    is_well: bool
    findings: tuple[Finding, ...]

    def count(self, level: Level) -> int:
        return sum(finding.level is level for finding in self.findings)


def examine(checks: Sequence[tuple[str, Check]]) -> Report:
    """The findings of named checks, in their order. After one that finds no database, no schema or no access to it none is tried."""
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings += check()
        except RunlaneError as error:
            findings.append(_failed(name, error))
            if isinstance(error, UnavailableError) or error.code in _ENDS:
                break
    return Report(all(finding.level is not Level.FAILURE for finding in findings), tuple(findings))


def _failed(name: str, error: RunlaneError) -> Finding:
    what = f"could not be looked at: {error.message}"
    if not isinstance(error, UnavailableError):
        return Finding(name, Level.FAILURE, what)
    return Finding(
        name, Level.FAILURE, what, "nothing more can be looked at without it",
        "see that it runs, that DATABASE_URL or the secret names it, and that firewalls and security groups let us in",
    )  # fmt: skip
