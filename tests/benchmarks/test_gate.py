"""The gate of CI fails when a figure grows, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gate import kept
from benchmarks.gate.kept import Kept
from benchmarks.gate.work import STEPS

TRIPS, CPU = "claim: round trips", "all steps: mean CPU of raw jobs"
BEFORE = {TRIPS: 0.2, CPU: 4.0}


def names(differences: list[kept.Difference]) -> list[str]:
    return [difference.name for difference in differences]


def test_figures_that_stay_pass() -> None:
    assert kept.grown(BEFORE, BEFORE) == []
    assert kept.shrunk(BEFORE, BEFORE) == []


@pytest.mark.parametrize(("name", "value", "fails"), [(TRIPS, 0.219, False), (TRIPS, 0.221, True), (CPU, 4.7, False), (CPU, 4.9, True)])
def test_a_figure_that_grew_beyond_its_margin_fails(name: str, value: float, fails: bool) -> None:
    assert names(kept.grown(BEFORE, {**BEFORE, name: value})) == [name] * fails


def test_a_figure_that_fell_is_told_and_passes() -> None:
    better = {**BEFORE, TRIPS: 0.1}

    assert kept.grown(BEFORE, better) == []
    assert [str(one) for one in kept.shrunk(BEFORE, better)] == ["claim: round trips 0.2 -> 0.1 (-50%)"]


def test_what_cost_nothing_may_not_cost_something() -> None:
    assert names(kept.grown({TRIPS: 0.0}, {TRIPS: 0.0})) == []
    assert names(kept.grown({TRIPS: 0.0}, {TRIPS: 0.01})) == [TRIPS]


def test_a_figure_that_is_not_kept_or_no_longer_measured_fails() -> None:
    assert names(kept.grown(BEFORE, {TRIPS: 0.2, "new: buffers": 3.0})) == [CPU, "new: buffers"]


def test_what_is_accepted_is_kept_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"

    kept.write(Kept("for the history", {TRIPS: 0.20004}), path)

    assert kept.read(path) == Kept("for the history", {TRIPS: 0.2})


def test_the_figures_of_the_repository_have_a_reason() -> None:
    assert kept.read().reason
    assert all(value >= 0 for value in kept.read().figures.values())


def test_every_step_of_the_gate_is_kept() -> None:
    assert {name.rpartition(": ")[0] for name in kept.read().figures} == {*(step.name for step in STEPS), "all steps"}
