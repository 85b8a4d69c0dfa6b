from __future__ import annotations

from collections.abc import Sequence

from runlane.domain.errors import ConflictError, RunlaneError, UnavailableError
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.run import Status
from runlane.ports.stores import SettleBatch, SettledRun
from runlane.services.patience import Patience, UntilStopped, brief
from runlane.services.settle import Settler
from runlane.services.stop import Stop
from tests.services.fakes import claimed
from tests.services.tasks import Bench


def test_only_a_further_try_says_that_it_may_find_its_own_work() -> None:
    """The first try was committed, but its answer was lost with the connection."""
    bench = Bench()
    tries: list[Settlement] = []

    def on_settle(settlements: Sequence[Settlement]) -> SettleBatch:
        tries.extend(settlements)
        if len(tries) == 1:
            raise UnavailableError("storage_unavailable", "gone")
        return SettleBatch((SettledRun(settlements[0].run_id, Status.SUCCEEDED),), ())

    bench.deliveries.on_settle = on_settle
    one = claimed("orders.ship", '{"number": 1}', attempt=4)
    bench.runlane.parts.settler.settle([Settlement(one.run_id, one.token, OutcomeKind.SUCCEEDED, result="1", attempt=4)])
    assert [(tried.tried_before, tried.attempt) for tried in tries] == [(False, 4), (True, 4)]
    assert bench.telemetry.named("settle.done") == [{"statuses": {Status.SUCCEEDED: 1}, "refused": 0}]


GONE = UnavailableError("storage_unavailable", "gone")
IN_THE_WAY = ConflictError("storage_conflict", "try again")


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Outage:
    """A settler whose storage refuses to settle until `ends_at`."""

    def __init__(self, ends_at: float, error: RunlaneError = GONE) -> None:
        self.time, self.bench = Time(), Bench()
        self.stop = Stop(self.time)
        self.deadlines: list[float] = []
        self._ends_at, self._error = ends_at, error
        self.bench.deliveries.on_settle = self._settle

    def settle(self, patience: Patience) -> bool:
        """Whether it was written."""
        parts = self.bench.runlane.parts
        settler = Settler(self.bench.deliveries, parts.publisher, self.time, self.bench.telemetry, patience)
        one = claimed("orders.ship")
        report = settler.write(
            [Settlement(one.run_id, one.token, OutcomeKind.SUCCEEDED)], meanwhile=lambda: self.deadlines.append(self.time.now)
        )
        return not report.unsettled

    @property
    def until_stopped(self) -> UntilStopped:
        return UntilStopped(self.stop, self.time)

    def _settle(self, settlements: Sequence[Settlement]) -> SettleBatch:
        if self.time.now < self._ends_at:
            raise self._error
        return SettleBatch(tuple(SettledRun(one.run_id, Status.SUCCEEDED) for one in settlements), ())


def test_a_worker_that_lives_on_keeps_an_outcome_for_as_long_as_an_outage_lasts_and_watches_the_time_meanwhile() -> None:
    outage = Outage(ends_at=3600)
    assert outage.settle(outage.until_stopped)
    assert 3600 <= outage.time.now < 3601
    assert max(after - before for before, after in zip(outage.deadlines, outage.deadlines[1:], strict=False)) <= 1


def test_it_gives_up_when_its_stop_has_ended() -> None:
    outage = Outage(ends_at=3600)
    outage.stop.ask(20)
    assert not outage.settle(outage.until_stopped)
    assert 20 <= outage.time.now < 21


def test_where_the_process_is_stopped_from_outside_an_outcome_waits_a_moment_only() -> None:
    outage = Outage(ends_at=1.6)
    assert not outage.settle(brief)
    assert outage.time.now == 1.5


def test_what_gives_way_again_and_again_is_not_kept_for_ever() -> None:
    outage = Outage(ends_at=3600, error=IN_THE_WAY)
    assert not outage.settle(outage.until_stopped)
    assert outage.time.now == 1.5
