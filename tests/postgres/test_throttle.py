"""A throttle starts at most limit + burst runs of a partition in any period, and reserves their turns ahead."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from runlane.domain.errors import ConflictError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind
from runlane.domain.queue import Queue, Throttle
from runlane.ports.stores import ClaimBatch, ClaimedRun, PublishMark, PublishResult, Refusal, Wakeup
from tests.postgres.factories import LEASE, Lane, ids, new_run, settlement

pytestmark = pytest.mark.postgres
ZERO, SECOND, MINUTE = timedelta(0), timedelta(seconds=1), timedelta(minutes=1)
ONE_A_MINUTE = Throttle(1, "1m")
STEP = timedelta(seconds=60.25)
"""Of one a minute: the period and its slack."""


def throttled(lane: Lane, throttle: Throttle, **options: object) -> Lane:
    lane.queues(Queue("work", throttle=throttle, **options))  # type: ignore[arg-type]
    return lane


def row(lane: Lane, query: str) -> tuple[object, ...]:
    found = lane.connection.execute(query.encode()).fetchone()
    assert found is not None
    return tuple(found)


def state(lane: Lane, key: str | None = None) -> str:
    return str(lane.value("SELECT state::text FROM runlane.partition WHERE coalesce(concurrency_key, '') = coalesce(%s, '')", key))


def planned(lane: Lane) -> list[timedelta]:
    """From the first to each planned start."""
    rows = lane.connection.execute("SELECT start_at FROM runlane.dispatch ORDER BY start_at").fetchall()
    return [start - rows[0][0] for (start,) in rows]


def claim_oldest(lane: Lane, limit: int = 100, queue: str = "work") -> ClaimBatch:
    return lane.storage.deliveries.claim_oldest([queue], limit=limit, lease_for=LEASE, worker="w")


def age_clock(lane: Lane, by: timedelta) -> None:
    """As if so much time had passed since everything that the throttle knows."""
    lane.connection.execute(
        "UPDATE runlane.partition SET throttle_clock = throttle_clock - %s, ready_at = ready_at - %s, hinted_at = hinted_at - %s",
        (by, by, by),
    )
    lane.connection.execute("UPDATE runlane.dispatch SET start_at = start_at - %s", (by,))
    lane.connection.execute("UPDATE runlane.event SET at = at - %s", (by,))


def look_far_ahead(lane: Lane) -> Lane:
    """Reserve for an hour instead of two seconds: no test is so slow that a turn passes meanwhile."""
    lane.connection.execute("UPDATE runlane.queue SET throttle_ahead = '1 hour'")
    return lane


def refused(batch: ClaimBatch) -> list[str]:
    return [refusal.reason for refusal in batch.refusals]


def hints(wakeups: Sequence[Wakeup]) -> list[RunId]:
    return [wakeup.run_id for wakeup in wakeups if wakeup.hint]


# The plan


def test_without_a_burst_starts_are_planned_evenly_and_two_seconds_ahead(lane: Lane) -> None:
    batch = throttled(lane, Throttle(10, "1s")).trigger(*[new_run("work")] * 40)
    step = timedelta(seconds=1.025) / 10
    assert planned(lane) == [step * place for place in range(20)]
    assert [wakeup.delay for wakeup in batch.wakeups] == planned(lane)
    assert state(lane) == "t"
    assert lane.storage.queues.stats(["work"])[0].blocked == {"throttled": 1}


def test_a_burst_starts_at_once_and_the_rest_evenly(lane: Lane) -> None:
    throttled(lane, Throttle(10, "1s", burst=3)).trigger(*[new_run("work")] * 6)
    step = timedelta(seconds=1.025) / 10
    assert planned(lane) == [ZERO] * 4 + [step, step * 2]


def test_partitions_are_throttled_each_by_itself(lane: Lane) -> None:
    batch = throttled(lane, ONE_A_MINUTE).trigger(
        *[new_run("work", concurrency_key=key, tenant=tenant) for key in ("a", "b", None) for tenant in ("t", None) for _ in range(2)]
    )
    assert len([wakeup for wakeup in batch.wakeups if not wakeup.hint]) == 6
    assert len(hints(batch.wakeups)) == 6


def test_a_total_limit_holds_no_slot_for_a_run_that_starts_later(lane: Lane) -> None:
    throttled(lane, Throttle(10, "1s"), total_limit=2)
    batch = lane.trigger(*[new_run("work", concurrency_key="busy")] * 3, new_run("work", concurrency_key="quiet"))
    assert [(wakeup.concurrency_key, wakeup.delay) for wakeup in batch.wakeups if not wakeup.hint] == [("busy", ZERO), ("quiet", ZERO)]


def test_the_expiry_of_a_reservation_counts_from_its_start(lane: Lane) -> None:
    throttled(lane, Throttle(1, "1s"), dispatch_timeout="500ms").trigger(*[new_run("work")] * 2)
    assert row(lane, "SELECT min(expires_at - start_at), max(expires_at - start_at) FROM runlane.dispatch") == (SECOND / 2,) * 2


# Starts


def test_a_claim_before_its_turn_is_refused_with_the_time_that_is_left(lane: Lane) -> None:
    first, second = ids(look_far_ahead(throttled(lane, ONE_A_MINUTE)).trigger(*[new_run("work")] * 2).wakeups)
    batch = lane.claim(first, second)
    assert ids(batch.claims) == [first]
    (refusal,) = batch.refusals
    assert (refusal.run_id, refusal.reason) == (second, "throttled")
    assert STEP / 2 < (refusal.due_in or ZERO) <= STEP
    assert claim_oldest(lane) == ClaimBatch()
    age_clock(lane, STEP)
    assert ids(claim_oldest(lane).claims) == [second]


def test_late_claims_start_no_more_at_once_than_the_burst_and_get_another_turn(lane: Lane) -> None:
    """As after an outage of the workers: every turn that was reserved has passed."""
    found = ids(throttled(lane, Throttle(4, "1s", burst=1)).trigger(*[new_run("work")] * 6).wakeups)
    age_clock(lane, MINUTE)
    batch = lane.claim(*found)
    assert len(batch.claims) == 2
    assert refused(batch) == ["throttled"] * 4
    step = timedelta(seconds=1.025) / 4
    assert planned(lane) == [step * place for place in range(4)]
    waits = sorted(refusal.due_in for refusal in batch.refusals if refusal.due_in is not None)
    assert len(waits) == 4
    assert ZERO <= waits[0] <= step


def test_a_late_claim_whose_turn_is_far_goes_back_to_its_old_place(lane: Lane) -> None:
    """A throttle that has become slow: what was reserved under the fast one."""
    found = ids(throttled(lane, Throttle(10, "1s")).trigger(*[new_run("work")] * 3).wakeups)
    throttled(lane, ONE_A_MINUTE)
    age_clock(lane, SECOND)
    batch = lane.claim(*found)
    assert len(batch.claims) == 1
    assert sorted(batch.refusals, key=lambda refusal: refusal.run_id) == [Refusal(run_id, "throttled") for run_id in found[1:]]
    assert hints(batch.wakeups) == [found[1]]
    assert lane.events(found[1]) == ["run.created", "run.dispatched", "run.dispatch_expired"]
    age_clock(lane, STEP)
    assert ids(lane.claim(found[1]).claims) == [found[1]]


def test_every_attempt_counts(lane: Lane) -> None:
    """Retries, releases, and claims that were handed back unstarted."""
    throttled(lane, Throttle(1, "1m", burst=2))
    run_id = lane.trigger_one("work")
    for kind in (OutcomeKind.RETRY, OutcomeKind.RELEASED, OutcomeKind.HANDED_BACK):
        (claim,) = lane.claim(run_id).claims
        lane.settle(settlement(claim, kind, delay=ZERO))
    assert refused(lane.claim(run_id)) == ["throttled"]


def test_a_full_partition_hands_its_slot_on_only_with_a_token(lane: Lane) -> None:
    throttled(lane, Throttle(1, "1m", burst=1), concurrency_limit=1)
    first, second, third = [run.run_id for run in lane.trigger(*[new_run("work")] * 3).runs]

    def turn(claim: ClaimedRun) -> ClaimBatch:
        return lane.storage.deliveries.settle_and_claim([settlement(claim)], ["work"], limit=1, lease_for=LEASE, worker="w")[1]

    (claim,) = turn(lane.claim_one(first)).claims
    assert claim.run_id == second
    last = turn(claim)
    assert last.claims == ()
    assert hints(last.wakeups) == [third]
    assert state(lane) == "t"


def test_run_now_is_refused_without_a_token_and_makes_nothing(lane: Lane) -> None:
    throttled(lane, ONE_A_MINUTE)
    assert lane.storage.operations.run_now(new_run("work"), lease_for=LEASE, worker="w").claim is not None
    for prepare in (lambda: None, lambda: look_far_ahead(lane)):
        prepare()
        with pytest.raises(ConflictError) as error:
            lane.storage.operations.run_now(new_run("work"), lease_for=LEASE, worker="w")
        assert error.value.code == "throttled"
    assert lane.value("SELECT count(*) FROM runlane.run") == 1


# What is not claimed


@pytest.mark.parametrize("way", ["cancel", "reschedule", "pause", "expiry"])
def test_a_reservation_that_is_not_claimed_is_given_back(lane: Lane, way: str) -> None:
    runs = look_far_ahead(throttled(lane, ONE_A_MINUTE)).trigger(*[new_run("work")] * 3).runs
    first, second = runs[0].run_id, runs[1].run_id
    started_at = lane.claim_one(first).claimed_at
    if way == "cancel":
        lane.cancel(second)
    elif way == "reschedule":
        lane.reschedule(second, MINUTE)
    elif way == "pause":
        lane.storage.queues.pause("work", tenant=None, concurrency_key=None, actor=None)
        assert lane.value("SELECT reserved FROM runlane.partition") == 0
        lane.storage.queues.resume("work", tenant=None, concurrency_key=None, actor=None)
    else:
        lane.age_dispatch(second)
        lane.storage.maintenance.expire_dispatches(limit=10)
    reserved = lane.value("SELECT count(*) FROM runlane.dispatch")
    last = lane.trigger_one("work")
    assert lane.value("SELECT start_at FROM runlane.dispatch WHERE run_id = %s", last) <= started_at + STEP * (reserved + 1)


def test_a_start_that_never_came_costs_nothing_after_a_kill(lane: Lane) -> None:
    """Reserved, published, and the worker dies before its claim: the expiry gives the turn to the next."""
    first, second = [run.run_id for run in throttled(lane, ONE_A_MINUTE).trigger(*[new_run("work")] * 2).runs]
    lane.cancel(first)
    assert [ids(lane.claim(run_id).claims) for run_id in (first, second)] == [[], [second]]


# Sleeping and waking


def test_a_sleeping_partition_is_hinted_once_and_woken_on_time(lane: Lane) -> None:
    batch = throttled(lane, ONE_A_MINUTE).trigger(*[new_run("work")] * 3)
    (hint,) = [wakeup for wakeup in batch.wakeups if wakeup.hint]
    assert hint.run_id == batch.runs[1].run_id
    assert STEP - SECOND * 2 < hint.delay <= STEP - SECOND
    assert hints(lane.trigger(new_run("work")).wakeups) == []
    assert lane.storage.maintenance.dispatch_queues(limit=10).wakeups == ()
    lane.succeed(lane.claim_one(batch.runs[0].run_id))
    assert lane.claim(hint.run_id).refusals == (Refusal(hint.run_id, "throttled"),)
    age_clock(lane, STEP)
    woken = lane.claim(hint.run_id)
    assert ids(woken.claims) == [hint.run_id]
    assert hints(woken.wakeups) == [batch.runs[2].run_id]


def test_a_wakeup_that_comes_a_moment_early_is_told_how_long_to_hold_it(lane: Lane) -> None:
    first, second = [run.run_id for run in throttled(lane, ONE_A_MINUTE).trigger(*[new_run("work")] * 2).runs]
    lane.claim_one(first)
    lane.connection.execute(
        b"UPDATE runlane.partition SET throttle_clock = clock_timestamp() + interval '1900 ms', ready_at = clock_timestamp()"
    )
    batch = lane.claim(second)
    # It starts, if this machine has slept for so long.
    assert ids(batch.claims) == [second] or [ZERO < (refusal.due_in or ZERO) <= SECOND * 2 for refusal in batch.refusals] == [True]


@pytest.mark.parametrize("way", ["trigger", "settle", "claim", "tick"])
def test_whoever_passes_brings_a_partition_back(lane: Lane, way: str) -> None:
    first, waiting = [run.run_id for run in throttled(lane, ONE_A_MINUTE).trigger(*[new_run("work", concurrency_key="k")] * 2).runs]
    lane.claim_one(first)
    other = lane.trigger_one("work", concurrency_key="other")
    claim = lane.claim_one(other) if way == "settle" else None
    age_clock(lane, STEP)
    if way == "trigger":
        found = lane.trigger(new_run("work", concurrency_key="third")).wakeups
    elif way == "claim":
        found = lane.claim(other).wakeups
    elif claim is not None:
        found = lane.succeed(claim).wakeups
    else:
        found = lane.storage.maintenance.dispatch_queues(limit=10).wakeups
    assert waiting in ids(found)
    assert lane.claim(waiting).claims


def test_a_hint_beyond_the_reach_of_delays_is_left_to_the_tick(lane: Lane) -> None:
    batch = throttled(lane, Throttle(1, "1h")).trigger(*[new_run("work")] * 2)
    assert hints(batch.wakeups) == []
    tick = lane.storage.maintenance.dispatch_queues
    assert tick(limit=10).wakeups == ()
    age_clock(lane, timedelta(minutes=57))
    (hint,) = tick(limit=10).wakeups
    assert (hint.hint, hint.run_id) == (True, batch.runs[1].run_id)
    assert tick(limit=10).wakeups == ()
    lane.storage.triggers.mark_published([PublishMark(PublishResult(hint.run_id, published=False, hint=True))])
    assert hints(tick(limit=10).wakeups) == [hint.run_id]


def test_the_next_run_takes_the_hint_over_when_the_hinted_one_goes(lane: Lane) -> None:
    runs = [run.run_id for run in throttled(lane, ONE_A_MINUTE).trigger(*[new_run("work")] * 4).runs]
    assert hints(lane.cancel(runs[1])[1]) == [runs[2]]
    answer = lane.reschedule(runs[2], timedelta(hours=1))
    assert answer is not None
    assert hints(answer.wakeups) == [runs[3]]


def test_a_throttled_tenant_leaves_its_turn_to_others_and_comes_back_by_its_weight(lane: Lane) -> None:
    throttled(lane, ONE_A_MINUTE)
    lane.claim_one(lane.trigger(*[new_run("work", tenant="a", concurrency_key="k")] * 2).runs[0].run_id)
    assert lane.value("SELECT ready FROM runlane.tenant WHERE name = 'a'") is False
    age_clock(lane, STEP)
    batch = lane.trigger(new_run("work", tenant="b"))
    assert len([wakeup for wakeup in batch.wakeups if not wakeup.hint]) == 2


def test_a_look_tells_when_to_come_again(lane: Lane) -> None:
    look = lane.storage.deliveries.look
    look_far_ahead(throttled(lane, ONE_A_MINUTE))
    assert look(["work"]).starts_in is None
    lane.trigger(*[new_run("work")] * 70)
    assert look(["work"]).is_dispatched
    claim_oldest(lane)
    found = look(["work"])
    assert (found.is_dispatched, found.recorded) == (False, ())
    assert STEP / 2 < (found.starts_in or ZERO) <= STEP
    age_clock(lane, timedelta(hours=1))
    found = look(["work"])
    assert (found.is_dispatched, found.recorded) == (True, ("work",))
    assert look(["other"]).starts_in is None


# Policies


def test_a_throttle_that_begins_counts_what_is_dispatched_already(lane: Lane) -> None:
    lane.queues(Queue("work"))
    found = ids(lane.trigger(*[new_run("work", concurrency_key="k")] * 3).wakeups)
    throttled(lane, Throttle(1, "1s"))
    assert row(lane, "SELECT reserved, state::text FROM runlane.partition") == (3, "e")
    batch = lane.claim(*found)
    assert (len(batch.claims), refused(batch)) == (1, ["throttled"] * 2)


def test_a_throttle_that_ends_lets_go_at_once(lane: Lane) -> None:
    throttled(lane, ONE_A_MINUTE)
    runs = [run.run_id for run in lane.trigger(*[new_run("work")] * 3).runs]
    assert ids(lane.queues(Queue("work"))) == runs[1:]
    assert lane.value("SELECT count(start_at) FROM runlane.dispatch") == 0
    assert len(lane.claim(*runs).claims) == 3


def test_a_slow_throttle_that_becomes_fast_is_fast_one_step_later(lane: Lane) -> None:
    throttled(lane, Throttle(1, "1h"))
    runs = [run.run_id for run in lane.trigger(*[new_run("work")] * 3).runs]
    lane.claim_one(runs[0])
    wakeups = throttled_anew(lane, Throttle(4, "1s"))
    assert [wakeup.run_id for wakeup in wakeups] == runs[1:]
    assert wakeups[0].delay <= timedelta(seconds=1.025) / 4


def throttled_anew(lane: Lane, throttle: Throttle) -> tuple[Wakeup, ...]:
    return lane.queues(Queue("work", throttle=throttle))


def test_a_policy_that_changes_otherwise_keeps_the_clock(lane: Lane) -> None:
    throttled(lane, ONE_A_MINUTE)
    lane.claim_one(lane.trigger_one("work"))
    clock = row(lane, "SELECT throttle_clock FROM runlane.partition")
    throttled(lane, ONE_A_MINUTE, concurrency_limit=3)
    assert row(lane, "SELECT throttle_clock FROM runlane.partition") == clock
    assert len([wakeup for wakeup in lane.trigger(new_run("work")).wakeups if not wakeup.hint]) == 0
