from __future__ import annotations

import pytest

from runlane.domain.errors import ContractError, UnavailableError
from runlane.domain.outcome import OutcomeKind
from runlane.ports.stores import ClaimBatch
from runlane.services.delivery import Record
from tests.services.fakes import claimed, run_id
from tests.services.tasks import Bench
from tests.services.test_delivery import message, quick


def test_the_next_run_is_executed_and_nothing_after_it() -> None:
    bench = Bench([quick])
    first, second = claimed("quick", "1"), claimed("quick", "2")
    bench.deliveries.oldest += [ClaimBatch((first,)), ClaimBatch((second,))]
    assert bench.runlane.execute_next() == first.run_id
    assert bench.deliveries.calls == ["oldest", "settle"]
    assert bench.deliveries.limits == [1]
    assert bench.deliveries.outcomes[first.run_id].kind == OutcomeKind.SUCCEEDED


def test_without_a_dispatched_run_there_is_none_and_nothing_is_settled() -> None:
    bench = Bench([quick])
    assert bench.runlane.execute_next(queues=["main"]) is None
    assert bench.deliveries.calls == ["oldest"]


def test_an_acknowledged_delivery_returns_and_a_failed_one_raises_its_reason() -> None:
    bench = Bench([quick])
    run = claimed("quick", "1")
    bench.deliveries.claims += [ClaimBatch((run,)), UnavailableError("storage_unavailable", "gone")]
    bench.runlane.execute_delivery(Record("m0", message(run.run_id)))
    assert bench.deliveries.outcomes[run.run_id].kind == OutcomeKind.SUCCEEDED
    with pytest.raises(UnavailableError, match="comes again"):
        bench.runlane.execute_delivery(Record("m1", message(run_id())))
    with pytest.raises(ContractError, match="misfit"):
        bench.runlane.execute_delivery(Record("m2", ContractError("envelope_invalid", "misfit")))
