"""When everybody was cut off at once, those who are alive get the time to say so before their work is done again."""

from __future__ import annotations

import pytest

from runlane.adapters.postgres.storage import PostgresStorage
from runlane.domain.queue import Queue
from runlane.ports.stores import ClaimedRun
from tests.postgres.factories import LEASE, Lane, at_once, ids, new_run

pytestmark = pytest.mark.postgres
FEW = 20
MOST = 100


@pytest.fixture
def claimed(lane: Lane) -> list[ClaimedRun]:
    """More leases than one worker is likely to have, kept."""
    lane.queues(Queue("work"))
    woken = lane.trigger(*[new_run("work")] * (FEW + 10)).wakeups
    return list(lane.claim(*ids(woken)).claims)


def cut_off(lane: Lane, claims: list[ClaimedRun]) -> None:
    for claim in claims:
        lane.age_lease(claim.run_id)


def expired(lane: Lane) -> set[str]:
    return {lease.run_id for lease in lane.storage.maintenance.expired_leases(limit=MOST)}


def let_the_hold_pass(lane: Lane, seconds: int = 11) -> None:
    lane.connection.execute("UPDATE runlane.upkeep SET at = at - %s * interval '1 second' WHERE work = 'hold'", (seconds,))


def test_owners_that_come_back_keep_what_they_have_and_the_rest_is_recovered(lane: Lane, claimed: list[ClaimedRun]) -> None:
    cut_off(lane, claimed)
    assert expired(lane) == set()
    alive, dead = claimed[:5], claimed[5:]
    lane.storage.deliveries.heartbeat({claim.run_id: claim.token for claim in alive}, lease_for=LEASE)
    assert expired(lane) == set()
    let_the_hold_pass(lane)
    assert expired(lane) == set(ids(dead))


def test_nor_does_a_wakeup_recover_them_meanwhile(lane: Lane, claimed: list[ClaimedRun]) -> None:
    cut_off(lane, claimed)
    found = lane.claim(claimed[0].run_id, claimed[1].run_id)
    assert [refusal.reason for refusal in found.refusals] == ["leased", "leased"]
    assert found.expired == ()
    let_the_hold_pass(lane)
    assert [lease.run_id for lease in lane.claim(claimed[0].run_id).expired] == [claimed[0].run_id]


def test_the_leases_of_one_worker_are_recovered_at_once(lane: Lane, claimed: list[ClaimedRun]) -> None:
    cut_off(lane, claimed[:FEW])
    assert expired(lane) == set(ids(claimed[:FEW]))


def test_so_are_those_of_several_while_most_are_kept(lane: Lane, claimed: list[ClaimedRun]) -> None:
    others = lane.claim(*ids(lane.trigger(*[new_run("work")] * (FEW + 2)).wakeups)).claims
    lost = claimed[: FEW + 1]
    assert len(others) + len(claimed) > 2 * len(lost)
    cut_off(lane, lost)
    assert expired(lane) == set(ids(lost))


def test_a_second_outage_is_waited_for_again(lane: Lane, claimed: list[ClaimedRun]) -> None:
    cut_off(lane, claimed)
    assert expired(lane) == set()
    let_the_hold_pass(lane, seconds=200)
    assert expired(lane) == set()
    let_the_hold_pass(lane)
    assert expired(lane) == set(ids(claimed))


def test_a_clock_that_was_put_back_makes_nobody_wait_for_long(lane: Lane, claimed: list[ClaimedRun]) -> None:
    cut_off(lane, claimed)
    assert expired(lane) == set()
    let_the_hold_pass(lane, seconds=-3600)
    assert expired(lane) == set()
    let_the_hold_pass(lane)
    assert expired(lane) == set(ids(claimed))


def test_many_who_find_it_at_once_all_wait(lane: Lane, other_storage: PostgresStorage, claimed: list[ClaimedRun]) -> None:
    cut_off(lane, claimed)
    found = at_once(
        lambda: lane.storage.maintenance.expired_leases(limit=MOST),
        lambda: other_storage.maintenance.expired_leases(limit=MOST),
    )
    assert found == [(), ()]
