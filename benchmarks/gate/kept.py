"""The figures that are kept, and what is wrong with those just measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KEPT = Path(__file__).with_name("kept.json")
MARGIN = 1.1
"""What a figure may grow by; of what noise cannot touch."""
MARGINS = {"mean CPU of raw jobs": 1.2, "CPU of raw jobs": 1.6}
"""Of units that noise does touch: on a machine busy with much else, five measurements of the same code differed by a factor of 1.15, and
those of a single step by up to 1.5."""
NOTHING = 0.001
"""Figures below it are compared as if they were it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """reason: why the figures are what they are, of who accepted them last."""

    reason: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """before, after: None where there is no such figure."""

    name: str
    before: float | None
    after: float | None

    def __str__(self) -> str:
        return f"{self.name} {_shown(self.before)} -> {_shown(self.after)}{self._change()}"

    def _change(self) -> str:
        return "" if self.before is None or self.after is None else f" ({self.after / max(self.before, NOTHING) - 1:+.0%})"


def margin(name: str) -> float:
    return MARGINS.get(name.rpartition(": ")[2], MARGIN)


def grown(kept: Mapping[str, float], figures: Mapping[str, float]) -> list[Difference]:
    """What grew beyond its margin, is new, or was not measured."""
    names = [*kept, *(name for name in figures if name not in kept)]
    return [
        Difference(name, kept.get(name), figures.get(name))
        for name in names
        if name not in kept or name not in figures or figures[name] > max(kept[name], NOTHING) * margin(name)
    ]


def shrunk(kept: Mapping[str, float], figures: Mapping[str, float]) -> list[Difference]:
    """What is better by more than its margin, so that it could be lost again without notice."""
    return [
        Difference(name, before, figures[name])
        for name, before in kept.items()
        if name in figures and figures[name] * margin(name) < before and before > NOTHING
    ]


def read(path: Path = KEPT) -> Kept:
    content = json.loads(path.read_text(encoding="utf-8"))
    return Kept(content["reason"], content["figures"])


def write(kept: Kept, path: Path = KEPT) -> None:
    figures = {name: float(f"{value:.4g}") for name, value in kept.figures.items()}
    path.write_text(json.dumps({"reason": kept.reason, "figures": figures}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _shown(value: float | None) -> str:
    return "nothing" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
