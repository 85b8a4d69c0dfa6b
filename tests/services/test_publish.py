"""What becomes of wakeups is written late and together; what would be wrong by then is not written at all."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest

from runlane.domain.errors import UnavailableError
from runlane.domain.ids import RunId
from runlane.ports.stores import PublishMark, Wakeup
from runlane.services.publish import FORGET_AFTER, MARK_AFTER, MOST_UNMARKED, Publisher
from tests.postgres.factories import at_once
from tests.services.fakes import FakeTransport, FakeTriggers, claimed, run_id


class Marks(FakeTriggers):
    def __init__(self) -> None:
        super().__init__()
        self.groups: list[list[PublishMark]] = []

    def mark_published(self, marks: Any) -> None:
        self.groups.append(list(marks))


class Told:
    def __init__(self) -> None:
        self.events: list[str] = []

    def emit(self, event: str, **_: Any) -> None:
        self.events.append(event)


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Desk:
    publisher: Publisher
    marks: Marks
    transport: FakeTransport
    clock: Hands
    told: Told

    def send(self, count: int = 1, *, hint: bool = False) -> list[str]:
        wakeups = [Wakeup(run_id(), "main", hint=hint) for _ in range(count)]
        self.publisher.publish(wakeups)
        return [wakeup.run_id for wakeup in wakeups]

    @property
    def marked(self) -> list[list[str]]:
        return [[mark.result.run_id for mark in group] for group in self.marks.groups]


@pytest.fixture
def desk() -> Desk:
    marks, transport, clock, told = Marks(), FakeTransport(), Hands(), Told()
    return Desk(Publisher(transport, marks, clock, told), marks, transport, clock, told)  # type: ignore[arg-type]


def test_a_success_is_marked_together_with_others_after_a_while(desk: Desk) -> None:
    first = desk.send()
    desk.clock.seconds += MARK_AFTER - 0.5
    second = desk.send()
    assert desk.marked == []
    desk.clock.seconds += 0.5
    third = desk.send()
    assert desk.marked == [[*first, *second, *third]]
    assert [mark.age for mark in desk.marks.groups[0]] == [MARK_AFTER, 0.5, 0.0]


def test_a_thousand_are_not_kept(desk: Desk) -> None:
    few = desk.send(MOST_UNMARKED - 1)
    assert desk.marked == []
    (last,) = desk.send()
    assert desk.marked == [[*few, last]]


def test_a_failure_is_marked_at_once_and_alone(desk: Desk) -> None:
    desk.send()
    desk.transport.error = RuntimeError("gone")
    failed = desk.send()
    assert desk.marked == [failed]
    assert desk.told.events == ["publish.failed"]


def test_a_hint_that_was_sent_has_nothing_to_mark(desk: Desk) -> None:
    desk.send(hint=True)
    desk.publisher.flush()
    assert desk.marked == []


def test_what_maintenance_has_taken_for_lost_is_not_marked(desk: Desk) -> None:
    desk.send()
    desk.clock.seconds += FORGET_AFTER
    young = desk.send()
    desk.publisher.flush()
    assert desk.marked == [young]


def test_what_this_process_has_claimed_itself_is_not_marked(desk: Desk) -> None:
    first, second = desk.send(2)
    desk.publisher.forget([claimed("quick", run_id=first)])
    desk.publisher.flush()
    assert desk.marked == [[second]]


def test_a_run_that_is_woken_again_is_marked_once_and_as_young_as_that(desk: Desk) -> None:
    (run,) = desk.send()
    other = desk.send()
    desk.clock.seconds += 3
    desk.publisher.publish([Wakeup(RunId(run), "main")])
    desk.publisher.flush()
    assert [(mark.result.run_id, mark.age) for mark in desk.marks.groups[0]] == [(*other, 3.0), (run, 0.0)]


def test_a_flush_leaves_nothing_to_the_next(desk: Desk) -> None:
    sent = desk.send(3)
    desk.publisher.flush()
    desk.publisher.flush()
    assert desk.marked == [sent]


def test_marks_that_fail_fail_nobody(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(marks: Any) -> None:
        raise UnavailableError("storage_unavailable", "gone")

    monkeypatch.setattr(desk.marks, "mark_published", lost)
    desk.send()
    desk.publisher.flush()
    assert desk.told.events == ["publish.unmarked"]


def test_threads_that_send_at_once_mark_each_wakeup_once(desk: Desk) -> None:
    def send() -> list[str]:
        return [run for _ in range(50) for run in desk.send(MOST_UNMARKED // 100)]

    sent = chain.from_iterable(at_once(*[send] * 8))
    desk.publisher.flush()
    assert sorted(chain.from_iterable(desk.marked)) == sorted(sent)
