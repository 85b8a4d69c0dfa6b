"""A partition that sleeps for its throttle always has somebody who brings it back, and nobody who asks all the time."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from runlane.domain.ids import RunId
from runlane.domain.queue import Throttle
from runlane.ports.stores import Refusal
from tests.postgres.factories import Lane, ids, new_run
from tests.postgres.test_throttle import MINUTE, ONE_A_MINUTE, SECOND, STEP, ZERO, age_clock, hints, look_far_ahead, state, throttled

pytestmark = pytest.mark.postgres


def asleep(lane: Lane, **options: object) -> RunId:
    """The next run of a partition that sleeps after its first, which runs."""
    first, second = [run.run_id for run in throttled(lane, ONE_A_MINUTE, **options).trigger(*[new_run("work")] * 2).runs]
    lane.claim_one(first)
    return second


@pytest.mark.parametrize("came", [timedelta(seconds=28.75), timedelta(seconds=40)], ids=["before its time", "after its time"])
def test_a_hint_that_comes_too_early_since_the_start_before_it_was_late_is_sent_again(lane: Lane, came: timedelta) -> None:
    first, second = [run.run_id for run in throttled(lane, ONE_A_MINUTE).trigger(*[new_run("work")] * 2).runs]
    age_clock(lane, timedelta(seconds=30))
    lane.succeed(lane.claim_one(first))
    age_clock(lane, came)
    batch = lane.claim(second)
    assert batch.refusals == (Refusal(second, "throttled"),)
    (hint,) = batch.wakeups
    assert (hint.hint, hint.run_id, hint.delay >= SECOND) == (True, second, True)


def test_whoever_finds_a_partition_still_asleep_hints_it(lane: Lane) -> None:
    first, second = [run.run_id for run in throttled(lane, ONE_A_MINUTE).trigger(*[new_run("work", concurrency_key="k")] * 2).runs]
    age_clock(lane, timedelta(seconds=30))
    lane.claim_one(first)
    age_clock(lane, timedelta(seconds=40))
    (hint,) = [wakeup for wakeup in lane.trigger(new_run("work", concurrency_key="other")).wakeups if wakeup.hint]
    assert (hint.run_id, hint.delay > timedelta(seconds=5)) == (second, True)


def test_a_wakeup_of_a_paused_queue_is_not_held_and_the_resume_sends_another(lane: Lane) -> None:
    second = asleep(lane)
    lane.storage.queues.pause("work", tenant=None, concurrency_key=None, actor=None)
    age_clock(lane, STEP - SECOND * 3 / 2)
    for past in (ZERO, MINUTE):
        age_clock(lane, past)
        assert lane.claim(second).refusals == (Refusal(second, "paused"),)
    look = lane.storage.deliveries.look(["work"])
    assert (look.recorded, look.starts_in) == ((), None)
    assert ids(lane.storage.queues.resume("work", tenant=None, concurrency_key=None, actor=None)) == [second]


def test_a_resume_hints_what_was_hinted_while_it_was_paused(lane: Lane) -> None:
    second = asleep(lane)
    lane.storage.queues.pause("work", tenant=None, concurrency_key=None, actor=None)
    assert lane.claim(second).refusals == (Refusal(second, "paused"),)
    lane.connection.execute(b"UPDATE runlane.partition SET hinted_at = clock_timestamp()")
    assert hints(lane.storage.queues.resume("work", tenant=None, concurrency_key=None, actor=None)) == [second]


def test_a_wakeup_of_a_full_queue_is_not_held(lane: Lane) -> None:
    second = asleep(lane, total_limit=1)
    age_clock(lane, STEP)
    assert lane.claim(second).refusals == (Refusal(second, "at_capacity"),)
    look = lane.storage.deliveries.look(["work"])
    assert (look.recorded, look.starts_in) == ((), None)


def test_a_partition_passed_over_for_its_tenant_is_hinted_once_a_second(lane: Lane, dsn: str) -> None:
    new = [new_run("work", tenant="a", concurrency_key="k")] * 2
    first, second = [run.run_id for run in throttled(lane, ONE_A_MINUTE).trigger(*new).runs]
    lane.claim_one(first)
    age_clock(lane, STEP)
    with closing(psycopg.connect(dsn)) as holder:
        holder.execute("SELECT * FROM runlane.tenant FOR UPDATE")
        assert hints(lane.storage.maintenance.dispatch_queues(limit=10).wakeups) == [second]
        batch = lane.claim(second)
        assert batch.refusals == (Refusal(second, "throttled", timedelta(milliseconds=20)),)
        assert state(lane, "k") == "t"
        # Not left to the end of the connection: the server may see that later than this test goes on.
        holder.rollback()
    assert ids(lane.claim(second).claims) == [second]


def test_a_claim_starts_no_run_of_others_whose_turn_is_later_but_sends_its_wakeup(lane: Lane) -> None:
    runs = look_far_ahead(throttled(lane, ONE_A_MINUTE)).trigger(*[new_run("work")] * 4, eager=False).runs
    first, second, third, fourth = [run.run_id for run in runs]
    batch = lane.claim(third, fourth)
    assert ids(batch.claims) == [first]
    assert batch.refusals == ()
    assert [(wakeup.run_id, wakeup.delay > SECOND) for wakeup in batch.wakeups] == [(second, True), (third, True), (fourth, True)]


def test_a_tick_counts_hints_and_goes_on_until_all_are_sent(lane: Lane) -> None:
    throttled(lane, Throttle(1, "1h"))
    lane.trigger(*[new_run("work", concurrency_key=key) for key in "abc" for _ in range(2)])
    age_clock(lane, timedelta(minutes=57))
    steps = [lane.storage.maintenance.dispatch_queues(limit=3) for _ in range(2)]
    assert [(step.count, step.more) for step in steps] == [(3, True), (0, False)]


def test_a_turn_that_is_put_off_puts_off_its_expiry(lane: Lane) -> None:
    found = ids(throttled(lane, Throttle(2, "1s"), dispatch_timeout="500ms").trigger(*[new_run("work")] * 3).wakeups)
    age_clock(lane, timedelta(seconds=5))
    lane.connection.execute(b"UPDATE runlane.dispatch SET expires_at = start_at + interval '500 ms'")
    assert len(lane.claim(*found).claims) == 1
    assert lane.value("SELECT array_agg(DISTINCT expires_at - start_at) FROM runlane.dispatch") == [timedelta(seconds=0.5)]
