from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import runlane
from runlane.adapters.sqs.envelope import parse_wakeup
from runlane.domain.errors import ConfigurationError, ContractError
from runlane.domain.queue import Queue
from runlane.domain.task import task
from runlane.ports.stores import ClaimBatch
from runlane.ports.transport import DeliveryMessage
from runlane.runtime import Runlane
from runlane.services.context import Context
from runlane.services.lane import Lane
from tests.services.fakes import FakeStorage, FakeTransport, claimed, message
from tests.services.tasks import Bench, Order, main, ship


def test_every_fault_of_a_runtime_is_listed_at_once() -> None:
    @task("orders.ship", queue=Queue("main", total_limit=3))
    def twin(order: Order) -> None: ...

    async def wrap(run: Context, call_next: Callable[[], Any]) -> Any:
        return await call_next()

    with pytest.raises(ConfigurationError) as caught:
        Runlane(
            lane=Lane(FakeStorage(), FakeTransport()),
            queues=[main, Queue("unbound")],
            tasks=[ship, twin],
            environment="a:b",
            middleware=[wrap],
            worker_concurrency=0,
            worker_queues=["nowhere"],
            lease_duration="0s",
            retention="1h",
            continue_inline_for="soon",
        )
    text = "\n".join(caught.value.faults)
    for part in (
        "environment",
        "registered 2 times",
        "two definitions",
        "unbound",
        "async def",
        "worker_concurrency",
        "nowhere",
        "lease_",
        "retention: 1h",
        "soon",
    ):
        assert part in text, part


def test_runs_are_kept_as_long_as_the_keys_of_every_task() -> None:
    with pytest.raises(ConfigurationError, match=r"20d is shorter than idempotency_ttl 30d of task 'orders\.ship'"):
        Bench(retention="20d")
    assert Bench(retention="forever").runlane.tasks


def test_raw_messages_are_parsed_by_the_lane_and_misfits_are_returned() -> None:
    run = claimed("orders.ship", '{"number":1}')

    def parse(body: str, environment: str) -> DeliveryMessage:
        if body != "good":
            raise ContractError("envelope_invalid", environment)
        return message(run.run_id)

    storage = FakeStorage()
    storage.deliveries.claims.append(ClaimBatch((run,)))
    runtime = Runlane(lane=Lane(storage, FakeTransport(), parse), queues=[main], tasks=[ship])
    event = {"Records": [{"messageId": "a", "body": "good"}, {"messageId": "b", "body": "bad"}]}
    assert runtime.deliver_sqs(event, lambda: 60) == {"batchItemFailures": [{"itemIdentifier": "b"}]}
    assert run.run_id in storage.deliveries.outcomes


def test_raw_messages_without_a_parser_are_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        Bench().runlane.execute_deliveries([{"messageId": "a", "body": ""}])


def test_drift_is_reported_once() -> None:
    bench = Bench(queues=[main, Queue("new")])
    bench.storage.queues.policies = {"main": Queue("main", total_limit=2)}
    assert len(bench.runlane.start()) == 2
    assert bench.runlane.start() == ()
    assert len(bench.telemetry.named("queue.drift")) == 2


def test_the_public_names_are_there_and_cost_nothing_until_used() -> None:
    for name in runlane.__all__:
        assert getattr(runlane, name) is not None
    with pytest.raises(AttributeError):
        runlane.__getattr__("nothing")
    heavy = "import sys, runlane; sys.exit('pydantic' in sys.modules or 'runlane.runtime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", heavy], check=False).returncode == 0


def test_the_public_names_are_those_that_type_checkers_see() -> None:
    assert sorted(runlane.__all__) == sorted(runlane._HOME_OF)
    assert set(runlane.__all__) <= set(dir(runlane))


def test_a_runtime_can_be_closed() -> None:
    bench = Bench()
    bench.runlane.start()
    bench.runlane.close()


@pytest.mark.parametrize("event", [{}, None, [], {"Records": None}, {"Records": "x"}, {"Records": [None]}, {"Records": [{"body": "x"}]}])
def test_what_is_no_sqs_event_is_the_callers_error(event: Any) -> None:
    with pytest.raises(ContractError) as caught:
        Bench().runlane.deliver_sqs(event, lambda: 60)
    assert caught.value.code == "event_invalid"


def test_a_record_without_a_body_fails_alone() -> None:
    runtime = Runlane(lane=Lane(FakeStorage(), FakeTransport(), parse_wakeup), queues=[main], tasks=[ship])
    assert runtime.execute_deliveries([{"messageId": "a"}]) == ("a",)


def test_a_runtime_renewed_after_a_snapshot_has_a_name_and_connections_of_its_own() -> None:
    storage, transport = FakeStorage(), FakeTransport()
    runtime = Runlane(lane=Lane(storage, transport), queues=[main], tasks=[ship])
    runs, name = runtime.runs, runtime.parts.settings.name
    runtime.renew()
    assert runtime.parts.settings.name != name
    assert runtime.lane.storage is storage
    assert runtime.runs is not runs


def test_a_name_that_was_given_is_kept() -> None:
    runtime = Runlane(lane=Lane(FakeStorage(), FakeTransport()), queues=[main], tasks=[ship], worker_name="mine")
    runtime.renew()
    assert runtime.parts.settings.name == "mine"
