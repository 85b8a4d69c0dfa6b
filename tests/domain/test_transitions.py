from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.run import ACTIVE, TERMINAL, TRANSITIONS, WAITING, Status, Verb, transition

# The table of the contract, written a second time and by hand: rows are statuses, columns are verbs, "-" is refused.
CONTRACT = """
          claim   succeed   fail   retry    release   cancel    expire_start time_out  recover_retry recover_fail hand_back reschedule
queued    running -         -      -        -         cancelled cancelled    cancelled -             -            -         scheduled
scheduled running -         -      -        -         cancelled cancelled    cancelled -             -            -         scheduled
retrying  running -         -      -        -         cancelled -            cancelled -             -            -         retrying
released  running -         -      -        -         cancelled -            cancelled -             -            -         released
running   -       succeeded failed retrying released  stopping  -            stopping  retrying      failed       queued    -
stopping  -       cancelled failed failed   cancelled -         -            -         cancelled     cancelled    cancelled -
succeeded -       -         -      -        -         -         -            -         -             -            -         -
failed    -       -         -      -        -         -         -            -         -             -            -         -
cancelled -       -         -      -        -         -         -            -         -             -            -         -
""".replace("stopping", "cancellation_requested")


def cells() -> dict[tuple[Status, Verb], Status | None]:
    header, *rows = [line.split() for line in CONTRACT.strip().splitlines()]
    return {
        (Status(row[0]), Verb(verb)): None if cell == "-" else Status(cell)
        for row in rows
        for verb, cell in zip(header, row[1:], strict=True)
    }


CELLS = cells()


def test_the_contract_covers_every_status_and_every_verb() -> None:
    assert CELLS.keys() == {(status, verb) for status in Status for verb in Verb}


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("verb", Verb)
def test_every_status_answers_every_verb_as_the_contract_says(status: Status, verb: Verb) -> None:
    assert transition(status, verb) == CELLS[status, verb]


@given(st.sampled_from(sorted(TERMINAL)), st.sampled_from(Verb))
def test_a_terminal_run_refuses_everything(status: Status, verb: Verb) -> None:
    assert transition(status, verb) is None


def test_every_status_is_in_exactly_one_class() -> None:
    for status in Status:
        assert [status.is_waiting, status.is_active, status.is_terminal].count(True) == 1
    assert set(Status) == WAITING | ACTIVE | TERMINAL


def test_the_claim_is_the_one_door_to_running() -> None:
    doors = {(status, verb) for (status, verb), to in TRANSITIONS.items() if to is Status.RUNNING}
    assert doors == {(status, Verb.CLAIM) for status in WAITING}


def test_only_another_due_time_leads_to_where_it_starts() -> None:
    assert all(start is not to for (start, verb), to in TRANSITIONS.items() if verb is not Verb.RESCHEDULE)


def test_a_run_that_is_asked_to_stop_never_waits_or_succeeds_again() -> None:
    ends = {to for (start, _), to in TRANSITIONS.items() if start is Status.CANCELLATION_REQUESTED}
    assert ends == {Status.CANCELLED, Status.FAILED}


@given(st.lists(st.sampled_from(Verb), max_size=30), st.sampled_from([Status.QUEUED, Status.SCHEDULED]))
def test_whatever_is_done_to_a_run_its_first_terminal_status_is_its_last(verbs: list[Verb], status: Status) -> None:
    ended: Status | None = None
    for verb in verbs:
        status = transition(status, verb) or status
        assert ended is None or status is ended
        ended = status if status.is_terminal else None


def test_from_every_status_a_terminal_status_can_be_reached() -> None:
    for status in set(Status) - TERMINAL:
        reached = {status}
        while not reached & TERMINAL:
            wider = reached | {to for (start, _), to in TRANSITIONS.items() if start in reached}
            assert wider != reached
            reached = wider


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[Status.FAILED, Verb.CLAIM] = Status.RUNNING  # type: ignore[index]
