"""A worker that consumes: when its messages are deleted, kept and given back."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from runlane.domain.errors import ConfigurationError, ContractError, UnavailableError
from runlane.domain.outcome import Returned
from runlane.domain.task import task
from runlane.ports.source import Message
from runlane.ports.stores import ClaimBatch, ClaimedRun, Refusal
from runlane.ports.transport import DeliveryMessage
from runlane.services.attempt import Attempt
from runlane.services.batch import Batch
from runlane.services.budget import TimeBudget
from runlane.services.context import Context
from runlane.services.lane import Lane
from runlane.services.resident.worker import ResidentWorker
from tests.services.fakes import claimed, run_id
from tests.services.tasks import Bench
from tests.services.test_delivery import quick
from tests.waiting import until

gate = threading.Event()
started = threading.Event()


@task("gated")
def gated(payload: int, ctx: Context) -> None:
    started.set()
    while not gate.wait(0.01):
        ctx.check()


@dataclass
class FakeSource:
    """Gives its lots out one after the other; `refuses`: the calls that fail."""

    lots: list[Sequence[Message]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    limits: list[int] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    hidden: list[tuple[str, float]] = field(default_factory=list)
    hides_for: float = 0.0
    is_closed: bool = False
    polls: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def receive(self, limit: int, *, wait_for: float, hidden_for: float) -> Sequence[Message]:
        self.hides_for = hidden_for
        self._check("receive")
        self.limits.append(limit)
        if self.lots:
            return self.lots.pop(0)
        self.polls.acquire(timeout=0.02)
        return self.lots.pop(0) if self.lots else ()

    def delete(self, receipts: Collection[str]) -> None:
        self._check("delete")
        self.deleted += receipts

    def hide(self, receipts: Collection[str], seconds: float) -> None:
        self._check("hide")
        self.hidden += [(receipt, seconds) for receipt in receipts]

    def close(self) -> None:
        self.is_closed = True

    def _check(self, call: str) -> None:
        if call in self.refuses:
            raise UnavailableError("transport_unavailable", call)


def parse(body: str, environment: str) -> DeliveryMessage:
    if body == "misfit":
        raise ContractError("envelope_invalid", "misfit")
    return DeliveryMessage(run_id=run_id() if body == "lost" else body, queue="main")  # type: ignore[arg-type]


def message(body: str, group: str | None = None) -> Message:
    arn = "arn:aws:sqs:eu-west-1:1:q" + (".fifo" if group else "")
    record = {"messageId": body, "body": body, "eventSourceARN": arn, "attributes": {"MessageGroupId": group} if group else {}}
    return Message(body, f"receipt {body}", record, group)


class Consumed(Bench):
    def __init__(self, **settings: Any) -> None:
        super().__init__([quick, gated], **settings)
        self.source = FakeSource()
        self.runlane.rebind(Lane(self.storage, self.transport, parse, lambda queues: [self.source]))

    def give(self, *runs: ClaimedRun, others: Sequence[Message] = ()) -> None:
        """One lot: wakeups that lead to these claims, and other messages."""
        self.deliveries.claims.append(ClaimBatch(runs))
        self.source.lots.append([*(message(run.run_id) for run in runs), *others])


@pytest.fixture
def consumed() -> Iterator[Consumed]:
    gate.clear()
    started.clear()
    yield Consumed(lease_duration="300ms")
    gate.set()


@pytest.fixture
def worker(consumed: Consumed) -> Iterator[ResidentWorker]:
    running = consumed.runlane.worker("sqs", grace="2s")
    yield running
    running.stop("100ms")
    assert running.wait(60)
    assert consumed.source.is_closed


def test_messages_are_not_hidden_for_longer_than_sqs_permits() -> None:
    consumed = Consumed(lease_duration="12h")
    worker = consumed.runlane.worker("sqs", grace="2s")
    until(lambda: consumed.source.hides_for > 0)
    worker.stop("100ms")
    assert worker.wait(60)
    assert consumed.source.hides_for == 6 * 3600


def test_each_message_is_deleted_when_its_own_run_has_ended_and_the_others_are_kept(consumed: Consumed, worker: ResidentWorker) -> None:
    done, going = claimed("quick", "1"), claimed("gated", "1")
    consumed.give(done, going)
    until(lambda: consumed.source.deleted == [f"receipt {done.run_id}"])
    until(lambda: len(consumed.source.hidden) > 1)
    assert set(consumed.source.hidden) == {(f"receipt {going.run_id}", 0.6)}
    gate.set()
    until(lambda: f"receipt {going.run_id}" in consumed.source.deleted)
    assert worker.state.attempts == {"succeeded": 2}


def test_a_misfit_is_left_to_come_again_and_its_neighbour_deleted(consumed: Consumed, worker: ResidentWorker) -> None:
    run = claimed("quick", "1")
    consumed.give(run, others=[message("misfit")])
    until(lambda: consumed.source.deleted == [f"receipt {run.run_id}"])
    until(lambda: consumed.source.hidden == [("receipt misfit", 0.6)])


def test_of_a_group_that_fails_all_but_the_first_are_given_back_at_once(consumed: Consumed, worker: ResidentWorker) -> None:
    consumed.source.lots.append([message("misfit", "a"), message("lost", "a"), message("other", "b")])
    until(lambda: consumed.source.deleted == ["receipt other"])
    until(lambda: consumed.source.hidden == [("receipt misfit", 0.6), ("receipt lost", 0)])


def test_what_cannot_be_deleted_comes_again_and_hurts_nobody(consumed: Consumed, worker: ResidentWorker) -> None:
    consumed.source.refuses |= {"delete", "hide"}
    first, second = claimed("quick", "1"), claimed("quick", "2")
    consumed.give(first)
    until(lambda: "acknowledge.failed" in {name for name, _ in consumed.telemetry.events})
    assert worker.state.attempts == {"succeeded": 1}
    consumed.source.refuses.clear()
    consumed.give(second)
    until(lambda: consumed.source.deleted == [f"receipt {second.run_id}"])


def test_it_receives_again_after_the_transport_has_failed_and_again_after_storage_has(consumed: Consumed, worker: ResidentWorker) -> None:
    consumed.source.refuses.add("receive")
    until(lambda: "receive.failed" in {name for name, _ in consumed.telemetry.events})
    consumed.source.refuses.clear()
    consumed.deliveries.claims.append(UnavailableError("storage_unavailable", "gone"))
    consumed.source.lots.append([message("early")])
    until(lambda: "claim.failed" in {name for name, _ in consumed.telemetry.events})
    run = claimed("quick", "1")
    consumed.give(run)
    until(lambda: consumed.source.deleted == [f"receipt {run.run_id}"])


def test_it_receives_no_more_than_there_is_room_for(consumed: Consumed) -> None:
    running = consumed.runlane.worker("sqs", concurrency=3, grace="1s")
    until(lambda: bool(consumed.source.limits))
    consumed.give(claimed("gated", "1"), claimed("gated", "2"))
    until(lambda: consumed.source.limits[-1] == 1)
    assert max(consumed.source.limits) == 3
    running.stop()
    assert running.wait(60)


class Still:
    """A clock that is moved by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_wakeups_that_are_held_until_they_are_due_take_no_place_of_what_can_start() -> None:
    clock = Still()
    consumed = Consumed(clock=clock)
    early = [run_id() for _ in range(2)]
    consumed.deliveries.claims.append(ClaimBatch(refusals=tuple(Refusal(one, "not_due", timedelta(seconds=1)) for one in early)))
    consumed.source.lots.append([message(one) for one in early])
    running = consumed.runlane.worker("sqs", concurrency=2, grace="1s")
    until(lambda: running._worker.early.value == 2)
    polled = len(consumed.source.limits)
    until(lambda: len(consumed.source.limits) > polled)
    assert consumed.source.limits[-1] == 2
    assert consumed.source.deleted == []
    clock.now += 2
    running.stop("100ms")
    until(lambda: running._worker.early.value == 0)
    clock.now += 60
    assert running.wait(5)


def test_a_stop_releases_what_listens_and_acknowledges_it(consumed: Consumed) -> None:
    running = consumed.runlane.worker("sqs", grace="400ms")
    run = claimed("gated", "1")
    consumed.give(run)
    assert started.wait(60)
    assert running.state.under_way == 1
    running.stop()
    assert running.wait(60)
    settled = consumed.deliveries.outcomes[run.run_id]
    assert (settled.kind, settled.reason, settled.keeps_failures) == ("released", "worker_stopping", True)
    assert consumed.source.deleted == [f"receipt {run.run_id}"]
    assert running.give_back() == 0


def test_as_the_process_ends_what_has_ended_is_written_what_has_not_started_is_handed_back_and_only_the_rest_released(
    consumed: Consumed,
) -> None:
    running = consumed.runlane.worker("sqs", grace="100ms")
    running.stop()
    assert running.wait(60)
    base, runs = running._worker, [claimed("quick", str(number), failures=1) for number in range(3)]
    batch = Batch(base, TimeBudget(base.clock, None, 5.0), {})
    ended, going, waiting = attempts = [Attempt(run, quick, batch, base.clock, base.clock.monotonic()) for run in runs]
    base.pipeline.conclude(ended, Returned("7"))
    going.ends_at = base.clock.monotonic() + 60
    base.heartbeat.hold(attempts)
    assert running.give_back() == 0
    first, second, third = (consumed.deliveries.outcomes[attempt.claim.run_id] for attempt in (ended, going, waiting))
    assert (first.kind, first.result, first.tried_before) == ("succeeded", "7", True)
    assert (second.kind, second.tried_before, second.keeps_failures) == ("released", False, True)
    assert (third.kind, third.delay) == ("handed_back", timedelta(0))


def test_a_lane_without_sources_has_nothing_to_consume() -> None:
    with pytest.raises(ConfigurationError, match="sources"):
        Bench().runlane.worker("sqs")


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ContractError, match="mode: 'push' is none of poll, drain, sqs"):
        Bench().runlane.worker("push")  # type: ignore[arg-type]
