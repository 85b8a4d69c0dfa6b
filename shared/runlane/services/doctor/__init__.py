"""An examination: checks one after another, none of which keeps another from its turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from runlane.domain.errors import RunlaneError
from runlane.domain.finding import Finding, Level

Check = Callable[[], Iterable[Finding]]
"""Finds one or more; raising a `RunlaneError` is a finding, too."""


@dataclass(frozen=True, slots=True)
class Report:
    """`is_well`: nothing fails, as far as could be seen; there may be warnings."""

    is_well: bool
    findings: tuple[Finding, ...]

    def count(self, level: Level) -> int:
        return sum(finding.level is level for finding in self.findings)


def examine(checks: Sequence[tuple[str, Check]]) -> Report:
    """The findings of named checks, in their order."""
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings += check()
        except RunlaneError as error:
            findings.append(Finding(name, Level.FAILURE, f"could not be looked at: {error.message}"))
    return Report(all(finding.level is not Level.FAILURE for finding in findings), tuple(findings))
