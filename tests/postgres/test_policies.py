"""Policies in force change under traffic; pauses and weights take effect at once and for what they name only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.errors import ConfigurationError
from runlane.domain.ids import RunId
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.queue import Queue
from tests.postgres.factories import LEASE, Lane, at_once, ids, new_run, settlement
from tests.postgres.invariants import highest_occupancy

pytestmark = pytest.mark.postgres
ZERO, HOUR = timedelta(0), timedelta(hours=1)
NAMES: list[tuple[str | None, str | None]] = [(None, None), ("t", None), (None, "k"), ("t", "k")]


def pause(lane: Lane, name: tuple[str | None, str | None]) -> int:
    return lane.storage.queues.pause("work", tenant=name[0], concurrency_key=name[1], actor=None)[0]


def resume(lane: Lane, name: tuple[str | None, str | None]) -> list[str]:
    return ids(lane.storage.queues.resume("work", tenant=name[0], concurrency_key=name[1], actor=None))


def occupied(lane: Lane) -> int:
    return int(lane.value("SELECT coalesce(sum(occupied), 0) FROM runlane.partition"))


def test_a_stored_policy_reads_back_equal(lane: Lane) -> None:
    policies = [Queue("a"), Queue("b", concurrency_limit=2, total_limit=5, dispatch_timeout="90s", dispatch_window=7)]
    lane.queues(*policies)
    assert lane.storage.queues.read_policies() == {queue.name: queue for queue in policies}


def test_only_a_change_is_recorded(lane: Lane) -> None:
    for limit in (1, 1, 2):
        lane.storage.queues.write_policies([Queue("work", concurrency_limit=limit)], actor="ann")
    rows = lane.connection.execute(
        "SELECT actor, before->>'concurrency_limit', after->>'concurrency_limit' FROM runlane.policy_change ORDER BY changed_at"
    ).fetchall()
    assert rows == [("ann", None, "1"), ("ann", "1", "2")]


def test_a_queue_that_is_not_migrated_is_refused(lane: Lane) -> None:
    with pytest.raises(ConfigurationError, match="runlane migrate"):
        lane.trigger(new_run("nowhere"))
    for refused in (
        lambda: pause(lane, (None, None)),
        lambda: resume(lane, (None, None)),
        lambda: lane.storage.queues.set_weight("work", "t", 2),
    ):
        with pytest.raises(ConfigurationError, match="runlane migrate"):
            refused()


def test_a_lowered_limit_lets_running_runs_go_on_and_starts_no_more(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=3))
    batch = lane.trigger(*[new_run("work")] * 5)
    claims = lane.claim(*ids(batch.wakeups)).claims
    lane.queues(Queue("work", concurrency_limit=1))
    assert occupied(lane) == 3
    assert [len(lane.succeed(claim).wakeups) for claim in claims] == [0, 0, 1]
    assert occupied(lane) == 1


def test_a_bounded_queue_that_was_unlimited_counts_what_is_under_way(lane: Lane) -> None:
    lane.queues(Queue("work"))
    batch = lane.trigger(*[new_run("work", concurrency_key="k")] * 4)
    claims = lane.claim(*ids(batch.wakeups[:2])).claims
    lane.queues(Queue("work", concurrency_limit=3))
    assert occupied(lane) == 4
    late = lane.trigger_one("work", concurrency_key="k")
    assert lane.succeed(claims[0]).wakeups == ()
    assert ids(lane.succeed(claims[1]).wakeups) == [late]


def test_a_limit_that_was_lifted_and_came_back_counts_what_was_dispatched_between(lane: Lane) -> None:
    """Dispatched through the order, not directly: the rows name their partition although nobody counted them."""
    lane.queues(Queue("work", concurrency_limit=1))
    lane.queues(Queue("work"))
    for _ in range(3):
        run_id = lane.trigger_one("work", concurrency_key="k", delay=HOUR)
        lane.age_timer(run_id)
    assert len(lane.storage.maintenance.due_timers(look_ahead=ZERO, limit=10).wakeups) == 3
    lane.queues(Queue("work", concurrency_limit=2))
    assert occupied(lane) == 3
    assert lane.trigger(new_run("work", concurrency_key="k")).wakeups == ()


@pytest.mark.parametrize("bounded", [Queue("work", concurrency_limit=1), Queue("work", total_limit=1)], ids=["limit", "total"])
def test_a_limit_set_while_claims_and_settlements_are_in_flight(
    lane: Lane, other_storage: PostgresStorage, third_storage: PostgresStorage, bounded: Queue
) -> None:
    lane.queues(Queue("work"))
    for _ in range(8):
        woken = ids(lane.trigger(*[new_run("work", concurrency_key="k")] * 4).wakeups)
        claims = lane.claim(*woken[:2]).claims
        at_once(
            lambda: lane.queues(bounded),
            lambda woken=woken: other_storage.deliveries.claim_runs(woken[2:], lease_for=LEASE, worker="o").claims,
            lambda claims=claims: third_storage.deliveries.settle_runs([settlement(claim) for claim in claims]),
        )
        finish(lane)
        lane.queues(Queue("work"))


def finish(lane: Lane) -> None:
    """End what is leased or dispatched, without a tick."""
    rows = lane.connection.execute("SELECT run_id::text, token::text FROM runlane.lease").fetchall()
    claim = lane.storage.deliveries
    lane.settle(*(settlement_of(run_id, token) for run_id, token in rows))
    while found := claim.claim_oldest(["work"], limit=10, lease_for=LEASE, worker="w").claims:
        lane.succeed(*found)


def settlement_of(run_id: str, token: str) -> Settlement:
    return Settlement(RunId(run_id), token, OutcomeKind.SUCCEEDED, result="null")


def test_a_settle_that_meets_a_new_limit_wakes_whom_the_limit_holds_back(lane: Lane, other_storage: PostgresStorage) -> None:
    """The settle has read its leases, and waits for the change of policy to commit."""
    for _ in range(8):
        lane.queues(Queue("work"))
        claim = lane.claim_one(lane.trigger_one("work", concurrency_key="k"))

        def bound_and_trigger() -> None:
            lane.queues(Queue("work", concurrency_limit=1))
            lane.trigger(new_run("work", concurrency_key="k"))

        at_once(bound_and_trigger, lambda claim=claim: other_storage.deliveries.settle_runs([settlement(claim)]))
        assert lane.value("SELECT count(*) FROM runlane.dispatch") == 1
        finish(lane)


@pytest.mark.parametrize("limit", [None, 1], ids=["unlimited", "limit1"])
@pytest.mark.parametrize("name", NAMES, ids=["queue", "tenant", "key", "tenants_key"])
def test_a_pause_holds_what_it_names_and_nothing_else(lane: Lane, name: tuple[str | None, str | None], limit: int | None) -> None:
    lane.queues(Queue("work", concurrency_limit=limit))
    named = {(None, None): 4, ("t", None): 2, (None, "k"): 1, ("t", "k"): 1}[name]
    runs = [new_run("work", tenant=tenant, concurrency_key=key) for tenant in ("t", None) for key in ("k", "l")]
    lane.trigger(*runs)
    assert pause(lane, name) == named
    assert pause(lane, name) == 0
    assert lane.trigger(*runs).wakeups == () if limit else len(lane.trigger(*runs).wakeups) == 4 - named
    assert len(resume(lane, name)) == named * (1 if limit else 2)


@pytest.mark.parametrize("name", NAMES, ids=["queue", "tenant", "key", "tenants_key"])
def test_a_pause_of_what_was_never_seen_holds_it_when_it_comes(lane: Lane, name: tuple[str | None, str | None]) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    pause(lane, name)
    run_id = lane.trigger_one("work", tenant=name[0], concurrency_key=name[1])
    assert [refusal.reason for refusal in lane.claim(run_id).refusals] == ["paused"]
    assert resume(lane, name) == [run_id]


def test_running_runs_go_on_through_a_pause_and_their_slots_stay_empty(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    claim = lane.claim_one(lane.trigger_one("work", concurrency_key="k"))
    waiting = lane.trigger_one("work", concurrency_key="k")
    assert pause(lane, (None, "k")) == 0
    assert lane.succeed(claim).wakeups == ()
    assert lane.storage.queues.stats(["work"])[0].blocked == {"paused": 1}
    assert resume(lane, (None, "k")) == [waiting]


def test_two_pauses_of_a_key_are_lifted_one_by_one(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1))
    run_id = lane.trigger_one("work", tenant="t", concurrency_key="k")
    pause(lane, ("t", None))
    pause(lane, ("t", "k"))
    assert resume(lane, ("t", None)) == []
    assert resume(lane, ("t", "k")) == [run_id]


@pytest.mark.parametrize("name", NAMES, ids=["queue", "tenant", "key", "tenants_key"])
@pytest.mark.parametrize("limit", [None, 2], ids=["unlimited", "limit2"])
def test_a_pause_and_a_claim_at_the_same_moment_agree(
    lane: Lane, other_storage: PostgresStorage, name: tuple[str | None, str | None], limit: int | None
) -> None:
    lane.queues(Queue("work", concurrency_limit=limit))
    for _ in range(6):
        woken = ids(lane.trigger(*[new_run("work", tenant=name[0], concurrency_key=name[1])] * 2).wakeups)
        moves: list[Callable[[], object]] = [
            lambda: pause(lane, name),
            lambda woken=woken: other_storage.deliveries.claim_runs(woken, lease_for=LEASE, worker="o"),
        ]
        given_back, claimed = at_once(*moves)
        claims = claimed.claims  # type: ignore[attr-defined]
        assert given_back == len(woken) - len(claims)
        lane.succeed(*claims)
        lane.drain(lane.storage.queues.resume("work", tenant=name[0], concurrency_key=name[1], actor=None))


def test_raising_and_lowering_under_traffic_never_exceeds_the_highest_limit(lane: Lane, other_storage: PostgresStorage) -> None:
    lane.queues(Queue("work", concurrency_limit=1))

    def flicker() -> None:
        for limit in (2, 3, 1, 3, 2, 1, 3):
            lane.queues(Queue("work", concurrency_limit=limit))

    def traffic() -> None:
        for _ in range(12):
            other_storage.triggers.trigger_runs([new_run("work", concurrency_key="k")] * 3, eager=True)
            found = other_storage.deliveries.claim_oldest(["work"], limit=2, lease_for=LEASE, worker="o").claims
            other_storage.deliveries.settle_runs([settlement(claim) for claim in found])

    at_once(flicker, traffic)
    assert highest_occupancy(lane.connection, "work") <= 3


def test_a_key_that_a_pause_makes_known_keeps_its_weight_and_its_tenants_pause(lane: Lane) -> None:
    lane.queues(Queue("work"))
    lane.storage.queues.set_weight("work", "k", 3)
    for name in ((None, "k"), ("t", None), ("t", "k")):
        pause(lane, name)
    resume(lane, ("t", "k"))
    assert lane.value("SELECT weight FROM runlane.partition WHERE tenant IS NULL") == 3
    assert lane.trigger(new_run("work", tenant="t", concurrency_key="k")).wakeups == ()


def test_a_weight_takes_effect_at_the_next_dispatch(lane: Lane) -> None:
    lane.queues(Queue("work", total_limit=1))
    wakeups = lane.trigger(*[new_run("work", tenant=tenant) for tenant in ("a", "b") for _ in range(60)]).wakeups
    lane.storage.queues.set_weight("work", "b", 5)
    order = []
    for _ in range(31):
        (claim,) = lane.claim(*ids(wakeups)).claims
        order.append(claim.tenant)
        wakeups = lane.succeed(claim).wakeups
    assert 24 <= order.count("b") <= 26


def test_counters_tell_what_waits_and_why(lane: Lane) -> None:
    lane.queues(Queue("work", concurrency_limit=1, dispatch_window=2))
    lane.trigger(*(new_run("work", concurrency_key=key) for key in ("a", "a", "b", "c")), new_run("work", delay=HOUR))
    (stats,) = lane.storage.queues.stats(["work"])
    assert (stats.waiting, stats.scheduled, stats.due, stats.dispatched, stats.running, stats.partitions) == (3, 1, 2, 2, 0, 3)
    assert stats.blocked == {"concurrency_limit": 1, "window": 1}
    assert stats.oldest_due_for is not None
    assert not stats.paused
    pause(lane, (None, None))
    assert lane.storage.queues.stats(["work"])[0].paused
    resume(lane, (None, None))
