"""G7: no key or tenant starves another; the order is weighted virtual time, then due time less priority, then age."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from runlane.domain.queue import Queue
from tests.postgres.factories import LEASE, Lane, ids, new_run

pytestmark = pytest.mark.postgres
WEIGHTS = {"bronze": 1, "silver": 3, "gold": 6}
DISPATCHES = 10_000


def hold(lane: Lane, queue: Queue) -> None:
    """A queue that collects runs until it is resumed."""
    lane.queues(queue)
    lane.storage.queues.pause(queue.name, tenant=None, concurrency_key=None, actor=None)


def release(lane: Lane, queue: str) -> list[str | None]:
    return [
        wakeup.tenant or wakeup.concurrency_key
        for wakeup in lane.storage.queues.resume(queue, tenant=None, concurrency_key=None, actor=None)
    ]


@pytest.mark.parametrize(("shape", "dispatches"), [("tenants", DISPATCHES), ("keys", 2_000)])
def test_weights_of_1_3_6_hold_over_ten_thousand_dispatches(lane: Lane, shape: str, dispatches: int) -> None:
    hold(lane, Queue("work", dispatch_window=dispatches))
    for name, weight in WEIGHTS.items():
        lane.storage.queues.set_weight("work", name, weight)
        places = range(weight * dispatches * 12 // 100)
        if shape == "tenants":
            lane.trigger(*(new_run("work", tenant=name, concurrency_key=f"k{place % 4}") for place in places))
        else:
            lane.trigger(*(new_run("work", concurrency_key=name) for _ in places))
    shares = Counter(release(lane, "work"))
    assert sum(shares.values()) == dispatches
    for name, weight in WEIGHTS.items():
        assert shares[name] == pytest.approx(dispatches * weight / 10, rel=0.05)


def test_weights_hold_in_every_stretch_not_only_in_sum(lane: Lane) -> None:
    hold(lane, Queue("work", dispatch_window=100))
    for name, weight in WEIGHTS.items():
        lane.storage.queues.set_weight("work", name, weight)
        lane.trigger(*[new_run("work", tenant=name)] * 100)
    assert Counter(release(lane, "work")[:20]) == {name: 2 * weight for name, weight in WEIGHTS.items()}


def test_a_quiet_key_does_not_wait_behind_a_noisy_one(lane: Lane) -> None:
    hold(lane, Queue("work", total_limit=1))
    lane.trigger(*[new_run("work", concurrency_key="noisy")] * 500)
    quiet = lane.trigger_one("work", concurrency_key="quiet")
    wakeups = lane.storage.queues.resume("work", tenant=None, concurrency_key=None, actor=None)
    order: list[str] = []
    for _ in range(3):
        (claim,) = lane.claim(*ids(wakeups)).claims
        order.append(claim.run_id)
        wakeups = lane.succeed(claim).wakeups
    assert quiet in order[:2]


def test_a_newcomer_beside_a_backlog_is_next_but_gets_no_credit(lane: Lane) -> None:
    """Late tenants neither wait for the backlog nor make up for the time they slept."""
    lane.queues(Queue("work", total_limit=1))
    wakeups = lane.trigger(*[new_run("work", tenant="old", concurrency_key=f"k{place % 5}") for place in range(100)]).wakeups
    for _ in range(40):
        wakeups = lane.succeed(*lane.claim(*ids(wakeups)).claims).wakeups
    lane.trigger(*[new_run("work", tenant="new")] * 30)
    order: list[str | None] = []
    for _ in range(20):
        (claim,) = lane.claim(*ids(wakeups)).claims
        order.append(claim.tenant)
        wakeups = lane.succeed(claim).wakeups
    assert order[1:3].count("new") == 1
    assert abs(order.count("new") - order.count("old")) <= 2


def test_a_key_that_slept_while_paused_gets_no_credit(lane: Lane) -> None:
    lane.queues(Queue("work", total_limit=1))
    lane.trigger(*[new_run("work", tenant="t", concurrency_key=key) for key in ("a", "b") for _ in range(40)])
    lane.storage.queues.pause("work", tenant="t", concurrency_key="b", actor=None)
    for _ in range(20):
        lane.succeed(*lane.storage.deliveries.claim_oldest(["work"], limit=1, lease_for=LEASE, worker="w").claims)
    lane.storage.queues.resume("work", tenant="t", concurrency_key="b", actor=None)
    order = []
    for _ in range(12):
        (claim,) = lane.storage.deliveries.claim_oldest(["work"], limit=1, lease_for=LEASE, worker="w").claims
        order.append(claim.concurrency_key)
        lane.succeed(claim)
    assert abs(order.count("a") - order.count("b")) <= 2


def test_a_key_that_comes_after_its_tenant_was_served_in_one_batch_gets_no_credit(lane: Lane) -> None:
    lane.queues(Queue("work", total_limit=5))
    woken = lane.trigger(*[new_run("work", tenant="t", concurrency_key="served")] * 5).wakeups
    for key in ("newcomer", "served"):
        lane.trigger(*[new_run("work", tenant="t", concurrency_key=key)] * 5)
    order = []
    for wakeup in woken[:4]:
        (next_one,) = lane.succeed(lane.claim_one(wakeup.run_id)).wakeups
        order.append(next_one.concurrency_key)
    assert Counter(order) == {"newcomer": 2, "served": 2}


def test_tenants_share_before_their_keys_do(lane: Lane) -> None:
    """A tenant of fifty keys gets no more than a tenant of one."""
    hold(lane, Queue("work", dispatch_window=100))
    lane.trigger(*(new_run("work", tenant="wide", concurrency_key=f"k{place % 50}") for place in range(200)))
    lane.trigger(*[new_run("work", tenant="narrow")] * 200)
    assert Counter(release(lane, "work")) == {"wide": 50, "narrow": 50}


def test_inside_a_tenant_its_keys_take_turns(lane: Lane) -> None:
    hold(lane, Queue("work", dispatch_window=40))
    for key in ("a", "b", "c", "d"):
        lane.trigger(*[new_run("work", tenant="t", concurrency_key=key)] * 50)
    woken = lane.storage.queues.resume("work", tenant=None, concurrency_key=None, actor=None)
    assert Counter(wakeup.concurrency_key for wakeup in woken) == dict.fromkeys("abcd", 10)
    assert {wakeup.concurrency_key for wakeup in woken[:4]} == set("abcd")


def test_inside_a_partition_the_oldest_goes_first(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    runs = [lane.trigger_one("work") for _ in range(12)]
    (wakeup,) = lane.storage.maintenance.claim_unpublished(limit=1).wakeups or [None]
    first = lane.storage.deliveries.claim_oldest(["work"], limit=1, lease_for=LEASE, worker="w").claims
    assert wakeup is None
    done = [*ids(first), *lane.drain(lane.succeed(*first).wakeups)]
    assert done == runs


def test_priority_moves_a_run_only_inside_its_partition(lane: Lane) -> None:
    hold(lane, Queue("work", dispatch_window=8))
    late = lane.trigger_one("work", concurrency_key="a", priority=-600)
    plain = lane.trigger_one("work", concurrency_key="a")
    urgent = lane.trigger_one("work", concurrency_key="a", priority=600)
    others = [lane.trigger_one("work", concurrency_key="b") for _ in range(3)]
    woken = ids(lane.storage.queues.resume("work", tenant=None, concurrency_key=None, actor=None))
    assert [run_id for run_id in woken if run_id not in others] == [urgent, plain, late]
    assert {*woken[:2]} == {urgent, others[0]}


def test_a_retried_run_keeps_no_place_but_a_given_back_one_does(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    first, second = lane.trigger_one("work"), lane.trigger_one("work")
    lane.age_dispatch(first)
    assert ids(lane.storage.maintenance.expire_dispatches(limit=10).wakeups) == [first]
    assert lane.value("SELECT due_at FROM runlane.dispatch") < lane.value("SELECT due_at FROM runlane.waiting WHERE run_id = %s", second)


def test_a_weight_set_before_the_key_was_ever_seen_holds(lane: Lane) -> None:
    lane.queues(Queue("work"))
    lane.storage.queues.set_weight("work", "gold", 6)
    lane.storage.queues.pause("work", tenant=None, concurrency_key=None, actor=None)
    lane.trigger(new_run("work", concurrency_key="gold"), new_run("work", concurrency_key="plain"))
    assert lane.connection.execute("SELECT concurrency_key, weight FROM runlane.partition ORDER BY 1").fetchall() == [
        ("gold", 6),
        ("plain", 1),
    ]


def test_a_tenant_that_was_served_alone_starts_level_with_a_newcomer(lane: Lane) -> None:
    lane.queues(Queue("work", total_limit=1))
    keys = [f"k{place}" for place in range(10)]
    lane.drain(lane.trigger(*(new_run("work", tenant="served", concurrency_key=key) for key in keys * 3)).wakeups)
    wakeups = [*lane.trigger(*[new_run("work", tenant="newcomer")] * 10).wakeups]
    lane.trigger(*(new_run("work", tenant="served", concurrency_key=key) for key in keys))
    order: list[str | None] = []
    for _ in range(11):
        (claim,) = lane.claim(*ids(wakeups)).claims
        order.append(claim.tenant)
        wakeups = [*lane.succeed(claim).wakeups]
    assert 4 <= order.count("served") <= 6


def test_the_wait_of_a_quiet_tenant_does_not_depend_on_the_backlog_beside_it(lane: Lane) -> None:
    """Counted in hand-overs, not in seconds: how many runs of the noisy tenant start between trigger and start of a quiet one."""
    waits = {}
    for backlog in (20, 2_000):
        queue = f"work{backlog}"
        lane.queues(Queue(queue, total_limit=2))
        wakeups = [*lane.trigger(*[new_run(queue, tenant="noisy", concurrency_key=f"k{place % 9}") for place in range(backlog)]).wakeups]
        quiet = lane.trigger_one(queue, tenant="quiet")
        started = 0
        while quiet not in ids(wakeups):
            started += 1
            (claim,) = lane.claim(wakeups.pop(0).run_id, lease_for=timedelta(minutes=1)).claims
            wakeups += lane.succeed(claim).wakeups
        waits[backlog] = started
    assert waits[20] == waits[2_000] <= 2
