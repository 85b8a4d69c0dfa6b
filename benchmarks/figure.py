"""What a figure gives to the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Samples:
    """Repetitions of one measurement, in `unit`; none, and the line says why nothing was measured."""

    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        if not self.values:
            return "–"
        low, high = min(self.values), max(self.values)
        spread = "" if low == high else f" ({_shown(low)}–{_shown(high)})"
        return f"{_shown(self.median)}{spread} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a measured value, what it is compared with, their ratio or the value itself against a bar.

    at_most, at_least: the bar; none, and the line is only reported. tolerance: added to the bar by the quick form only.
    """

    what: str
    value: Samples
    base: Samples | None = None
    at_most: float | None = None
    at_least: float | None = None
    tolerance: float = 0.0

    @property
    def figure(self) -> float:
        """The ratio of the medians, or the median where there is nothing to compare with."""
        return self.value.median if self.base is None else self.value.median / (self.base.median or 1e-9)

    @property
    def passed(self) -> bool:
        too_high = self.at_most is not None and self.figure > self.at_most + self.tolerance
        too_low = self.at_least is not None and self.figure < self.at_least - self.tolerance
        return not (too_high or too_low)

    @property
    def bar(self) -> str:
        signs = [("≤", self.at_most), ("≥", self.at_least)]
        shown = " ".join(f"{sign} {value:g}" for sign, value in signs if value is not None)
        return f"{shown} (± {self.tolerance:g})" if shown and self.tolerance else shown


@dataclass(frozen=True, slots=True)
class Table:
    """The lines of one figure and what a reader must know of how they came about."""

    title: str
    notes: str
    rows: Sequence[Row] = field(default_factory=tuple)


class WorkMissing(RuntimeError):
    """The work was not done exactly once, so that its figures mean nothing."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise WorkMissing(what)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
