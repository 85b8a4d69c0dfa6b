"""Deliveries from FIFO queues: one after another in a group, groups side by side, and what is returned to the transport."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from runlane.domain.errors import ConfigurationError, ContractError, UnavailableError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue
from runlane.domain.task import task
from runlane.ports.stores import ClaimBatch, ClaimedRun, ExpiredLease, Refusal, SettleBatch, Wakeup
from runlane.runtime import Runlane
from runlane.services.attempt import Attempt
from runlane.services.batch import Batch
from runlane.services.budget import TimeBudget
from runlane.services.context import Context
from runlane.services.delivery import Delivery, Record
from runlane.services.lane import Lane
from runlane.services.message_groups import GroupedRecord, MessageGroups, group_of
from tests.services.fakes import FakeStorage, FakeTelemetry, FakeTransport, claimed, message, run_id
from tests.services.tasks import Bench

main = Queue("main", default=True)
ledger = Queue("ledger")

A_NAP = partial(float, 2.4)
"""Time for one nap, and for nothing to start after it."""

finished: list[tuple[str, float, float]] = []


@task("book", queue=ledger)
def book(payload: str) -> None:
    began = time.monotonic()
    time.sleep(0.005)
    finished.append((payload, began, time.monotonic()))


@task("fail", queue=ledger)
def fail(payload: str) -> None:
    raise RuntimeError(payload)


@task("deaf", queue=ledger, max_attempt_duration="50ms")
def deaf(payload: str) -> None:
    time.sleep(0.5)


@task("nap", queue=ledger)
def nap(payload: str) -> None:
    time.sleep(1.5)


@task("later", queue=ledger)
def later(payload: str, ctx: Context) -> Any:
    return ctx.release("10m", reason="not ready")


@pytest.fixture
def bench() -> Bench:
    finished.clear()
    return Bench([book, fail, deaf, later, nap], [main, ledger], ordered=["ledger"])


def run(payload: str, task: str = "book") -> ClaimedRun:
    return claimed(task, f'"{payload}"', queue="ledger")


def record(one: ClaimedRun | RunId, group: str | None, name: str = "") -> Record:
    found = one.run_id if isinstance(one, ClaimedRun) else one
    return Record(name or found, message(found, "ledger"), group)


def records(runs: Sequence[ClaimedRun], groups: str) -> list[Record]:
    """One for each run, in the group of its letter."""
    return [record(one, group) for one, group in zip(runs, groups, strict=True)]


def serve(bench: Bench, runs: Sequence[ClaimedRun]) -> None:
    """Each claim answers the claimable runs that are asked for."""
    known = {one.run_id: one for one in runs}
    bench.deliveries.on_claim = lambda asked: ClaimBatch(tuple(known[one] for one in asked if one in known))


def order_of(group: Sequence[ClaimedRun]) -> list[str]:
    mine = {one.payload.strip('"') for one in group}
    return [payload for payload, _, _ in finished if payload in mine]


def test_a_group_is_one_after_another_and_groups_are_side_by_side(bench: Bench) -> None:
    first, second = [run(f"a{n}") for n in range(4)], [run(f"b{n}") for n in range(4)]
    serve(bench, [*first, *second])
    mixed = [record(one, group) for pair in zip(first, second, strict=True) for one, group in zip(pair, "ab", strict=True)]
    assert bench.runlane.execute_deliveries(mixed) == ()
    assert order_of(first) == ["a0", "a1", "a2", "a3"]
    assert order_of(second) == ["b0", "b1", "b2", "b3"]
    for group in "ab":
        spans = sorted((began, ended) for payload, began, ended in finished if payload.startswith(group))
        assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))
    assert bench.deliveries.asked[0] == [first[0].run_id, second[0].run_id], "groups share claims"


def test_the_next_attempts_of_groups_meet(bench: Bench) -> None:
    both_run = threading.Barrier(2)

    @task("meet", queue=ledger)
    def meet(payload: str) -> None:
        both_run.wait(60)

    bench = Bench([meet], [main, ledger], ordered=["ledger"])
    runs = [claimed("meet", f'"{group}{place}"', queue="ledger") for place in range(3) for group in "ab"]
    serve(bench, runs)
    assert bench.runlane.execute_deliveries(records(runs, "ababab")) == ()
    assert {outcome.kind for outcome in bench.deliveries.outcomes.values()} == {OutcomeKind.SUCCEEDED}


def test_the_next_of_a_group_is_claimed_when_the_one_before_is_settled(bench: Bench) -> None:
    runs = [run("a0"), run("a1")]
    serve(bench, runs)
    bench.runlane.execute_deliveries(records(runs, "a" * len(runs)))
    assert bench.deliveries.calls == ["claim own", "settle", "claim own", "settle"]


def test_a_delivery_in_order_is_not_continued_inline_and_others_never_with_fifo_queues(bench: Bench) -> None:
    bench.deliveries.claims.append(ClaimBatch((claimed("book", '"x"'),)))
    bench.runlane.execute_deliveries([Record("m", message(run_id()))])
    assert bench.deliveries.calls == ["claim", "settle and claim"]
    assert bench.deliveries.continued == [("main",)]


def test_a_failed_attempt_yields_its_place_and_its_group_goes_on(bench: Bench) -> None:
    runs = [run("a0", "fail"), run("a1"), run("a2", "later"), run("a3")]
    serve(bench, runs)
    assert bench.runlane.execute_deliveries(records(runs, "a" * len(runs))) == ()
    kinds = [bench.deliveries.outcomes[one.run_id].kind for one in runs]
    assert kinds == [OutcomeKind.RETRY, OutcomeKind.SUCCEEDED, OutcomeKind.RELEASED, OutcomeKind.SUCCEEDED]


def test_after_a_message_that_cannot_be_read_its_group_is_returned_and_others_are_not(bench: Bench) -> None:
    seen: list[str] = []
    bench = Bench([book], [main, ledger], ordered=["ledger"], on_delivery_failure=[lambda one, error: seen.append(one)])
    runs = [run("a0"), run("a1"), run("b0")]
    serve(bench, runs)
    misfit = Record("misfit", ContractError("envelope_invalid", "no"), "a")
    failed = bench.runlane.execute_deliveries([record(runs[0], "a"), misfit, record(runs[1], "a"), record(runs[2], "b")])
    assert failed == ("misfit", runs[1].run_id)
    assert {payload for payload, _, _ in finished} == {"a0", "b0"}
    assert seen == ["misfit"], "what stands behind it has not failed"


def test_a_claim_that_fails_returns_its_groups(bench: Bench) -> None:
    runs = [run("a0"), run("a1"), run("b0")]
    bench.deliveries.claims.append(UnavailableError("storage_unavailable", "gone"))
    assert bench.runlane.execute_deliveries(records(runs, "aab")) == tuple(r.run_id for r in runs)
    assert not finished


def test_an_outcome_that_cannot_be_written_returns_its_record_and_those_behind_it(bench: Bench) -> None:
    runs = [run("a0"), run("a1"), run("b0"), run("b1")]
    serve(bench, runs)

    def refuse(settlements: Sequence[Any]) -> SettleBatch:
        if any(one.run_id == runs[0].run_id for one in settlements):
            raise ValueError("storage chokes on it")
        return SettleBatch((), ())

    bench.deliveries.on_settle = refuse
    assert bench.runlane.execute_deliveries(records(runs, "aabb")) == (
        runs[0].run_id,
        runs[1].run_id,
    )
    assert order_of(runs[2:]) == ["b0", "b1"]


@pytest.mark.parametrize("reason", ["terminal", "not_found", "at_capacity", "paused", "throttled"])
def test_a_refused_wakeup_is_acknowledged_and_its_group_goes_on(bench: Bench, reason: Any) -> None:
    behind = run("a1")
    bench.deliveries.claims += [ClaimBatch(refusals=(Refusal(gone := run_id(), reason),)), ClaimBatch((behind,))]
    assert bench.runlane.execute_deliveries([record(gone, "a"), record(behind, "a")]) == ()
    assert order_of([behind]) == ["a1"]


def test_a_record_whose_run_is_leased_elsewhere_holds_its_group(bench: Bench) -> None:
    other = run("b0")
    bench.deliveries.claims.append(ClaimBatch((other,), (Refusal(busy := run_id(), "leased"),)))
    assert bench.runlane.execute_deliveries([record(busy, "a"), record(behind := run_id(), "a"), record(other, "b")]) == (busy, behind)
    assert order_of([other]) == ["b0"]


def test_a_wakeup_that_is_not_due_is_sent_again_and_does_not_keep_its_group_waiting(bench: Bench) -> None:
    soon = timedelta(milliseconds=700)

    def goes_on_at_once() -> bool:
        early, behind = run_id(), run("a1")
        bench.deliveries.claims += [ClaimBatch(refusals=(Refusal(early, "not_due", soon),)), ClaimBatch((behind,))]
        began = time.monotonic()
        assert bench.runlane.execute_deliveries([record(early, "a"), record(behind, "a")]) == ()
        assert bench.transport.published[-1] == Wakeup(early, "ledger", delay=soon, hint=True)
        return time.monotonic() - began < 0.6

    # Once in a while the machine itself may take longer.
    assert any(goes_on_at_once() for _ in range(5))


def test_an_expired_lease_is_recovered_in_place_and_its_group_goes_on(bench: Bench) -> None:
    behind = run("a1")
    lease = ExpiredLease(run_id(), "token", "book", "ledger", 1, 0, 3, cancellation_requested=False)
    bench.deliveries.claims += [ClaimBatch(expired=(lease,)), ClaimBatch((behind,))]
    assert bench.runlane.execute_deliveries([record(lease.run_id, "a"), record(behind, "a")]) == ()
    assert bench.deliveries.outcomes[lease.run_id].kind is OutcomeKind.LEASE_EXPIRED
    assert order_of([behind]) == ["a1"]


def test_an_expired_lease_whose_attempt_this_process_still_holds_holds_its_group(bench: Bench) -> None:
    mine = run("a0")
    lease = ExpiredLease(mine.run_id, "token", "book", "ledger", 1, 0, 3, cancellation_requested=False)
    worker = bench.runlane._worker
    worker.heartbeat.hold([Attempt(mine, book, Batch(worker, TimeBudget(worker.clock, None, 5), {}), worker.clock, 0.0)])
    bench.deliveries.claims.append(ClaimBatch(expired=(lease,)))
    assert bench.runlane.execute_deliveries([record(mine, "a"), record(behind := run_id(), "a")]) == (mine.run_id, behind)
    assert not bench.deliveries.settled


def test_a_record_that_could_not_be_claimed_at_that_moment_keeps_its_place(bench: Bench) -> None:
    other = run("b0")
    again = Wakeup(run_id(), "ledger")
    bench.deliveries.claims.append(ClaimBatch((other,), wakeups=(again,)))
    returned = bench.runlane.execute_deliveries([record(again.run_id, "a"), record(behind := run_id(), "a"), record(other, "b")])
    assert returned == (again.run_id, behind)
    assert (order_of([other]), bench.transport.published) == (["b0"], [again])


def test_copies_of_a_wakeup_are_delivered_one_after_another(bench: Bench) -> None:
    one, behind = run("a0"), run("a1")
    bench.deliveries.claims += [ClaimBatch((one,)), ClaimBatch(refusals=(Refusal(one.run_id, "terminal"),)), ClaimBatch((behind,))]
    copies = [record(one, "a", "m1"), record(one, "a", "m2"), record(behind, "a", "m3")]
    assert bench.runlane.execute_deliveries(copies) == ()
    assert [payload for payload, _, _ in finished] == ["a0", "a1"]


def test_copies_in_two_groups_are_not_claimed_at_once() -> None:
    groups = MessageGroups([GroupedRecord("m1", "a", one := run_id()), GroupedRecord("m2", "b", one)])
    assert (groups.next(), groups.next()) == ([one], [])
    groups.end(one)
    assert groups.next() == [one]


def test_what_is_not_started_when_time_is_up_is_returned_unclaimed(bench: Bench) -> None:
    runs = [run("a0", "nap"), run("a1"), run("b0")]
    serve(bench, runs)
    assert bench.runlane.execute_deliveries(records(runs, "aab"), A_NAP) == (runs[1].run_id,)
    assert bench.deliveries.asked == [[runs[0].run_id, runs[2].run_id]]
    assert bench.deliveries.outcomes[runs[0].run_id].kind is OutcomeKind.SUCCEEDED


def test_a_claimed_run_that_cannot_start_any_more_is_handed_back_and_its_record_returned() -> None:
    bench = Bench([nap, book], [main, ledger], ordered=["ledger"], worker_concurrency=1)
    runs = [run("a0", "nap"), run("b0"), run("b1")]
    serve(bench, runs)
    returned = bench.runlane.execute_deliveries(records(runs, "abb"), A_NAP)
    assert returned == (runs[1].run_id, runs[2].run_id)
    assert bench.deliveries.outcomes[runs[1].run_id].kind is OutcomeKind.HANDED_BACK
    assert runs[2].run_id not in bench.deliveries.outcomes


def test_a_stray_holds_its_group() -> None:
    bench = Bench([deaf, book], [main, ledger], ordered=["ledger"])
    finished.clear()
    stray, behind, other = run("a0", "deaf"), run("a1"), run("b0")
    serve(bench, [stray, behind, other])
    # Its time is up, and the grace after it; the thread goes on.
    failed = bench.runlane.execute_deliveries([record(stray, "a"), record(behind, "a"), record(other, "b")], lambda: 0.4)
    assert failed == (stray.run_id, behind.run_id)
    assert order_of([behind, other]) == ["b0"]


def test_a_wakeup_of_a_fifo_queue_that_came_otherwise_is_dispatched_and_published_instead_of_executed(bench: Bench) -> None:
    picked = Wakeup(run_id(), "ledger")
    bench.deliveries.claims.append(ClaimBatch(wakeups=(picked,)))
    assert bench.runlane.execute_deliveries([record(asked := run_id(), None)]) == ()
    assert (bench.deliveries.calls, bench.deliveries.asked) == (["forward"], [[asked]])
    assert bench.transport.published == [picked]


def test_a_timer_that_comes_a_moment_early_is_held_and_then_published(bench: Bench) -> None:
    early = run_id()
    picked = Wakeup(early, "ledger")
    bench.deliveries.claims += [
        ClaimBatch(refusals=(Refusal(early, "not_due", timedelta(milliseconds=30)),)),
        ClaimBatch(wakeups=(picked,)),
    ]
    assert bench.runlane.execute_deliveries([record(early, None)]) == ()
    assert bench.deliveries.calls == ["forward", "forward"]
    assert bench.transport.published == [picked]


@pytest.mark.parametrize(
    ("arn", "attributes", "group"),
    [
        ("arn:aws:sqs:us-east-1:1:work.fifo", {"MessageGroupId": "g"}, "g"),
        ("arn:aws:sqs:us-east-1:1:work.fifo", {}, ""),
        ("arn:aws:sqs:us-east-1:1:work.fifo", None, ""),
        ("arn:aws:sqs:us-east-1:1:work", {"MessageGroupId": "fair"}, None),
        (None, {"MessageGroupId": "fair"}, None),
        (10**5000, {"MessageGroupId": "fair"}, None),
        ("arn:aws:sqs:us-east-1:1:work.fifo", {"MessageGroupId": 10**5000}, ""),
    ],
    ids=["fifo", "no group", "no attributes", "standard", "no queue", "no text", "no text as group"],
)
def test_only_a_fifo_queues_group_puts_in_order(arn: str | None, attributes: Any, group: str | None) -> None:
    assert group_of({"eventSourceARN": arn, "attributes": attributes}) == group


def test_a_fifo_queue_is_not_polled(bench: Bench) -> None:
    bench.runlane.execute_next()
    assert bench.deliveries.polled == [("main",)]
    for refused in (lambda: bench.runlane.execute_next([ledger]), lambda: Bench([], [main, ledger], ["ledger"], worker_queues=["ledger"])):
        with pytest.raises(ConfigurationError, match=r"queue 'ledger' is bound to FIFO: .* receive from that SQS queue"):
            refused()


def test_what_is_over_is_told_before_its_group_goes_on_and_what_is_returned_never() -> None:
    bench = Bench([book, nap], [main, ledger], ordered=["ledger"])
    runs = [run("a0"), run("a1"), run("b0", "nap"), run("b1")]
    told: list[str] = []
    known = {one.run_id: one for one in runs}

    def claim(asked: Sequence[RunId]) -> ClaimBatch:
        if runs[1].run_id in asked:
            assert told == [runs[0].run_id]
        return ClaimBatch(tuple(known[one] for one in asked))

    bench.deliveries.on_claim = claim
    returned = Delivery(bench.runlane._worker).deliver(records(runs, "aabb"), A_NAP, told.extend)
    assert returned == (runs[3].run_id,)
    assert sorted(told) == sorted(one.run_id for one in runs[:3])


def event(*records: Record) -> dict[str, Any]:
    facts = {"eventSourceARN": "arn:aws:sqs:us-east-1:1:work.fifo", "body": "no json"}
    return {"Records": [{**facts, "messageId": one.message_id, "attributes": {"MessageGroupId": one.group}} for one in records]}


@pytest.mark.parametrize("trouble", [UnavailableError("transport_unavailable", "no"), ValueError("no")], ids=["foreseen", "unforeseen"])
@pytest.mark.parametrize("seconds", [9.0, 2.0])
def test_what_is_returned_is_shown_again_if_there_is_time_and_no_trouble_with_it_fails_the_answer(
    seconds: float, trouble: Exception
) -> None:
    asked: list[Sequence[str]] = []

    def give_back(records: Sequence[Any], returned: Any) -> None:
        asked.append(list(returned))
        raise trouble

    def parse(body: str, environment: str) -> Any:
        raise ContractError("envelope_invalid", "no")

    storage, transport, telemetry = FakeStorage(), FakeTransport(bound=["main", "ledger"], ordered=["ledger"]), FakeTelemetry()
    runlane = Runlane(lane=Lane(storage, transport, parse, give_back=give_back), queues=[main, ledger], telemetry=telemetry)
    answer = runlane.deliver_sqs(event(record(run_id(), "a", "m1"), record(run_id(), "a", "m2")), lambda: seconds)
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m1"}, {"itemIdentifier": "m2"}]}
    assert asked == ([["m1", "m2"]] if seconds > 3 else [])
    assert len(telemetry.named("return.failed")) == len(asked)
