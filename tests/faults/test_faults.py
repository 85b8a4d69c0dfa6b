"""A process meets one fault at each statement, commit and publication of each use case: the rest of the system ends its work all the same.

The matrix is what the use cases do when nothing fails, times what may happen there; nothing of it is sampled.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runlane.adapters.postgres.statements import named_statements
from tests.faults.cases import CASES
from tests.faults.doom import COMMIT, DETACH, PUBLISH, Fault, Kind, Step
from tests.faults.play import Stage

pytestmark = [
    pytest.mark.postgres,
    # A dead process leaves threads that can write nothing.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
EACH = pytest.mark.parametrize("name", CASES)


def faults_of(steps: list[Step]) -> list[Fault]:
    return [fault for place, step in enumerate(steps) for fault in step.faults(place)]


def broken_by(stage: Stage, name: str, chosen: Callable[[Fault], bool]) -> tuple[int, list[str]]:
    """How many faults were tried, and what they broke."""
    broken: list[str] = []
    faults = [fault for fault in faults_of(stage.play(CASES[name])) if chosen(fault)]
    for fault in faults:
        try:
            stage.play(CASES[name], fault)
        except Exception as error:
            broken.append(f"{name}, {fault}: {error!r}"[:2000])
    return len(faults), broken


def test_no_statement_is_without_a_case(stage: Stage) -> None:
    met = {step.name for case in CASES.values() for step in stage.play(case)}
    assert met == {*named_statements(), PUBLISH, COMMIT, DETACH}


@EACH
def test_a_process_dies_after_any_statement(stage: Stage, name: str, record_property: Callable[[str, object], None]) -> None:
    """The part of the matrix that runs with every test."""
    tried, broken = broken_by(stage, name, lambda fault: fault.kind is Kind.DIES_AFTER)
    record_property("faults", tried)
    assert broken == []


@pytest.mark.thorough
@EACH
def test_every_other_fault_at_every_place(stage: Stage, name: str, record_property: Callable[[str, object], None]) -> None:
    tried, broken = broken_by(stage, name, lambda fault: fault.kind is not Kind.DIES_AFTER)
    record_property("faults", tried)
    assert broken == []
