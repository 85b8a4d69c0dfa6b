"""The protocol, explored to its last state: no promise is broken anywhere, and each fault that is put into it is found."""

from __future__ import annotations

from time import process_time

import pytest

from runlane.domain.run import TRANSITIONS
from tests.postgres.protocol.explorer import Explorer
from tests.postgres.protocol.model import LIKE, MODELLED, Bug, Kind, Rules

CALM = frozenset({Kind.WORK, Kind.CHOICE})
"""Nothing fails, no lease expires, nobody ticks."""
WORLDS: dict[str, tuple[Rules, frozenset[Kind]]] = {
    "three_workers": (Rules(most_mistaken=1), frozenset(Kind)),
    "two_workers": (Rules(workers=2), frozenset(Kind)),
    "publication": (Rules(workers=1, late_marks=1, publishes=True), frozenset(Kind)),
    "one_slot_for_all": (Rules(workers=2, concurrency_limit=None, total_limit=1), frozenset(Kind)),
    "calm": (Rules(publishes=True), CALM),
}
SHOWN_BY: dict[Bug, tuple[Rules, frozenset[Kind], str]] = {
    Bug.NO_FENCING: (Rules(), frozenset(Kind), "ended by its owner alone"),
    Bug.SLOT_FREED_TWICE: (Rules(), frozenset(Kind), "slots are conserved"),
    Bug.CANCELLED_GETS_SLOT: (Rules(), frozenset(Kind), "the table forbids to claim a run that is cancelled"),
    Bug.RECOVERY_WITHOUT_TOKEN: (Rules(workers=2), frozenset(Kind), "attempts never exceed their maximum"),
    Bug.RECOVERY_BEFORE_EXPIRY: (Rules(), frozenset(Kind), "ended by its owner alone"),
    Bug.MARK_OF_ANOTHER: (Rules(late_marks=1, publishes=True), frozenset(Kind), "what is marked as published has been sent"),
    Bug.SLOT_KEPT: (Rules(), frozenset(Kind), "free capacity is used at once"),
    Bug.LIMIT_UNCHECKED: (Rules(), frozenset(Kind), "a limit is a limit"),
    Bug.WAKEUP_FORGOTTEN: (Rules(), CALM, "from every state all runs can end"),
    Bug.NO_EXPIRY_OF_DISPATCHES: (Rules(workers=1, publishes=True), frozenset(Kind), "from every state all runs can end"),
    Bug.CANCEL_UNDONE: (Rules(), frozenset(Kind), "a run that is asked to stop never waits again"),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("world", [pytest.param(name, marks=[] if name == "calm" else [pytest.mark.thorough]) for name in WORLDS])
def test_no_state_of_four_runs_in_two_partitions_breaks_a_promise(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    rules, kinds = WORLDS[world]
    began = process_time()
    found = Explorer(rules, kinds=kinds).explore()
    with capsys.disabled():
        print(f"\nmodel, {world}: {found.states:,} states, {found.transitions:,} transitions, {process_time() - began:.1f} s of CPU")  # noqa: T201
    assert found.fault is None
    assert found.states > 1000


@pytest.mark.parametrize("bug", Bug)
def test_the_explorer_finds_that(bug: Bug) -> None:
    rules, kinds, promise = SHOWN_BY[bug]
    found = Explorer(rules._replace(bug=bug), sizes=(2, 1), kinds=kinds).explore()
    assert found.fault is not None
    assert promise in found.fault.promise


def test_the_model_leaves_out_only_verbs_that_do_what_a_cancel_does_or_move_a_due_time() -> None:
    left_out = {verb for _, verb in TRANSITIONS} - MODELLED
    assert {verb.value for verb in left_out} == {"expire_start", "time_out", "reschedule"}


def test_statuses_are_alike_only_if_the_table_treats_them_alike() -> None:
    for status, like in LIKE.items():
        assert all(TRANSITIONS.get((status, verb)) == TRANSITIONS.get((like, verb)) for verb in MODELLED)
