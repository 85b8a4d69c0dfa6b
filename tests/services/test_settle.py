from __future__ import annotations

from collections.abc import Sequence

from runlane.domain.errors import UnavailableError
from runlane.domain.outcome import OutcomeKind, Settlement
from runlane.domain.run import Status
from runlane.ports.stores import SettleBatch, SettledRun
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
