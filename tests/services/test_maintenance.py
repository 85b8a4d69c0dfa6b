from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runlane.domain.errors import InvariantError
from runlane.domain.outcome import Settlement
from runlane.domain.run import Status
from runlane.ports.maintenance import PhaseResult
from runlane.ports.stores import ExpiredLease, SettleBatch, SettledRun, Wakeup
from runlane.services.maintenance import PHASES
from runlane.services.maintenance.recover_leases import GROUP
from tests.services.fakes import run_id
from tests.services.tasks import Bench


def counts(bench: Bench, **arguments: Any) -> dict[str, int]:
    found: dict[str, int] = bench.runlane.tick(**arguments)["counts"]
    return found


def expired(task: str, failures: int = 0) -> ExpiredLease:
    return ExpiredLease(run_id(), "token", task, "main", failures + 1, failures, 3, cancellation_requested=False)


def test_a_quiet_pass_takes_one_step_of_each_phase() -> None:
    bench = Bench()
    assert counts(bench) == {phase.name: 0 for phase in PHASES}
    assert len(bench.storage.maintenance.calls) == len(PHASES) - 1


def test_a_phase_goes_on_until_its_backlog_is_empty_and_publishes_what_it_frees() -> None:
    bench = Bench()
    bench.storage.maintenance.answers["fold_recorded"] = [
        PhaseResult(500, more=True, wakeups=(Wakeup(run_id(), "main"),)),
        PhaseResult(3, more=False, wakeups=(Wakeup(run_id(), "main"),)),
    ]
    assert counts(bench)["fold_recorded"] == 503
    assert len(bench.transport.published) == 2


def test_a_failing_phase_stops_no_other() -> None:
    bench = Bench()
    bench.storage.maintenance.answers = {"due_timers": [RuntimeError("broken")], "dispatch_queues": [PhaseResult(7, more=False)]}
    report = bench.runlane.tick()
    assert (report["failed"], report["counts"]["dispatch_queues"]) == (["due_timers"], 7)
    assert bench.telemetry.named("phase.failed")
    assert bench.storage.maintenance.noted == [("due_timers",)]


def test_a_pass_tells_what_alarms_ask_for() -> None:
    bench = Bench()
    bench.runlane.tick()
    (done,) = bench.telemetry.named("tick.done")
    assert done["gauges"] == {"oldest_due_seconds": 90, "horizon_seconds": 0}


def test_a_pass_that_cannot_be_noted_says_so() -> None:
    bench = Bench()
    bench.storage.maintenance.answers["note_tick"] = [RuntimeError("broken")]
    assert bench.runlane.tick()["failed"] == ["note_tick"]


def test_a_step_that_passed_over_something_is_followed_by_another() -> None:
    bench = Bench()
    bench.storage.maintenance.answers["retain"] = [PhaseResult(0, more=True), PhaseResult(5, more=True), PhaseResult(0, more=False)]
    assert counts(bench)["retain"] == 5


def test_a_pass_ends_with_its_time_and_says_what_is_left() -> None:
    bench = Bench()
    bench.storage.maintenance.answers["expire_dispatches"] = [PhaseResult(1, more=True)] * 100
    report = bench.runlane.tick(0)
    assert (report["counts"]["expire_dispatches"], report["unfinished"]) == (1, ["expire_dispatches"])
    assert bench.runlane.tick(remaining=lambda: 3)["unfinished"] == ["expire_dispatches"]


def test_expired_leases_are_recovered_by_their_tasks_policy() -> None:
    bench = Bench()
    again, last = expired("orders.ship"), expired("unknown.here", failures=2)
    bench.storage.maintenance.leases.append((again, last))
    assert counts(bench)["recover_leases"] == 2
    settled = bench.deliveries.outcomes
    assert [(settled[one.run_id].kind, settled[one.run_id].final) for one in (again, last)] == [
        ("lease_expired", False),
        ("lease_expired", True),
    ]


def test_an_outage_of_the_transport_ends_the_publishing() -> None:
    bench = Bench()
    bench.transport.error = RuntimeError("gone")
    bench.storage.maintenance.answers["claim_unpublished"] = [PhaseResult(1, more=True, wakeups=(Wakeup(run_id(), "main"),))] * 5
    assert counts(bench)["publish_unpublished"] == 0
    assert bench.storage.maintenance.calls.count("claim_unpublished") == 1


def test_leases_that_cannot_be_settled_do_not_keep_the_others_from_it() -> None:
    stuck = [expired("orders.ship") for _ in range(GROUP)]
    others = [expired("orders.ship") for _ in range(3)]
    bench = Bench()

    def on_settle(settlements: Sequence[Settlement]) -> SettleBatch:
        if any(one.run_id in {lease.run_id for lease in stuck} for one in settlements):
            raise InvariantError("storage_refused", "no")
        return SettleBatch(tuple(SettledRun(one.run_id, Status.RETRYING) for one in settlements), ())

    bench.deliveries.on_settle = on_settle
    bench.storage.maintenance.leases = [tuple(stuck), tuple(others)]
    assert bench.runlane.tick()["counts"]["recover_leases"] == len(others)
    assert bench.storage.maintenance.passed_over == [(), tuple(lease.run_id for lease in stuck)]
