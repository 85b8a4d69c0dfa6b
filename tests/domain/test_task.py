from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from runlane.domain.errors import ConfigurationError, ContractError
from runlane.domain.queue import Queue
from runlane.domain.retry import Retry
from runlane.domain.task import task

if TYPE_CHECKING:
    from tests.domain.nowhere import OnlyForTypeCheckers  # type: ignore[import-not-found]


@dataclass
class Sync:
    user_id: str
    priority: int = 0


@task("invoices.sync")
def sync(payload: Sync, ctx: OnlyForTypeCheckers) -> str:
    return f"{payload.user_id} {ctx}"


def plain(payload: Sync) -> None: ...


def faults_of(handler: Any, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        task("invoices.sync", **options)(handler)
    return caught.value.faults


def test_a_task_stays_a_function_that_can_be_called() -> None:
    assert sync(Sync("u1"), "ctx") == "u1 ctx"


def test_the_signature_is_read_even_if_the_context_is_a_type_for_checkers_only() -> None:
    assert sync.id == "invoices.sync"
    assert sync.payload_type is Sync
    assert sync.takes_context
    assert not sync.is_async


def test_a_handler_may_take_the_payload_alone_and_may_be_async() -> None:
    @task("invoices.sync")
    async def alone(payload: dict[str, int]) -> int:
        return payload["n"]

    assert alone.is_async
    assert not alone.takes_context
    assert alone.payload_type == dict[str, int]
    assert asyncio.run(alone({"n": 1})) == 1


def test_annotations_keep_their_metadata_for_the_validator() -> None:
    @task("invoices.sync")
    def annotated(payload: Annotated[int, "positive"]) -> None: ...

    assert annotated.payload_type == Annotated[int, "positive"]


def test_a_wrapped_handler_shows_the_signature_that_it_wraps() -> None:
    def traced(handler: Any) -> Any:
        @wraps(handler)
        def call(*arguments: Any) -> Any:
            return handler(*arguments)

        return call

    def inner(payload: Sync, ctx: Any) -> None: ...

    wrapped = task("invoices.sync")(traced(inner))
    assert wrapped.payload_type is Sync
    assert wrapped.takes_context


def test_options_have_the_documented_defaults() -> None:
    options = sync.options
    assert options.idempotency_ttl == timedelta(days=30)
    assert options.priority == 0
    assert (options.queue, options.retry, options.tenant, options.finish_timeout) == (None, None, None, None)


def test_durations_of_options_are_read() -> None:
    made = task("a", idempotency_ttl="active", max_attempt_duration="2m", start_timeout="1h", finish_timeout=timedelta(days=1))
    options = made(plain).options
    assert options.idempotency_ttl is None
    assert options.max_attempt_duration == timedelta(minutes=2)
    assert options.start_timeout == timedelta(hours=1)
    assert options.finish_timeout == timedelta(days=1)


def test_keys_and_priority_are_values_or_functions_of_the_payload() -> None:
    made = task("a", tenant="acme", concurrency_key=lambda p: p.user_id, singleton_key=lambda _: None, priority=lambda p: p.priority)
    routing = made(plain).options.route(Sync("u1", priority=60))
    assert (routing.tenant, routing.concurrency_key, routing.singleton_key, routing.idempotency_key) == ("acme", "u1", None, None)
    assert routing.priority == 60


@pytest.mark.parametrize(
    ("option", "value"), [("tenant", ""), ("concurrency_key", 7), ("priority", 601), ("priority", True), ("priority", None)]
)
def test_a_function_that_gives_something_wrong_is_refused_by_the_name_of_its_option(option: str, value: Any) -> None:
    options: dict[str, Any] = {option: lambda _: value}
    with pytest.raises(ContractError, match=option):
        task("a", **options)(plain).options.route(Sync("u1"))


def test_wrong_options_and_a_wrong_handler_are_reported_together() -> None:
    faults = faults_of(
        lambda _: None,
        queue="main",
        retry=3,
        tenant="",
        concurrency_key="a\0",
        idempotency_ttl="soon",
        priority=-601,
        max_attempt_duration="0s",
        start_timeout="-1s",
        debounced="5s",
    )
    durations = ["idempotency_ttl", "max_attempt_duration", "start_timeout"]
    values = ["queue", "retry", "tenant", "concurrency_key", "priority"]
    assert [fault.split(": ")[1] for fault in faults] == ["debounced", *durations, *values, "handler"]
    assert all(fault.startswith("task 'invoices.sync': ") for fault in faults)


def test_an_attempt_longer_than_the_whole_run_is_a_contradiction() -> None:
    assert "could never use it" in faults_of(plain, max_attempt_duration="2h", finish_timeout="1h")[0]


def test_a_wrong_id_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="separates names"):
        task("invoices:sync")(plain)


def test_handlers_that_cannot_be_called_with_payload_and_context_are_refused() -> None:
    def no_payload() -> None: ...

    def three(payload: Sync, ctx: Any, more: int) -> None: ...

    def keyword(payload: Sync, *, flag: bool) -> None: ...

    def bare(payload) -> None: ...  # type: ignore[no-untyped-def]

    def unresolvable(payload: OnlyForTypeCheckers) -> None: ...

    def yields(payload: Sync) -> Any:
        yield payload

    expected = {
        no_payload: "takes no payload",
        three: "nothing fills its parameter 'more'",
        keyword: "nothing fills its parameter 'flag'",
        bare: "has no annotation",
        unresolvable: "cannot be resolved",
        yields: "it yields",
    }
    for handler, told in expected.items():
        (fault,) = faults_of(handler)
        assert told in fault
    assert "is not a function" in faults_of(42)[0]


def test_defaults_and_variadic_parameters_need_nothing() -> None:
    def generous(payload: Sync, ctx: Any = None, more: int = 1, *rest: Any, flag: bool = True, **named: Any) -> None: ...

    assert task("a")(generous).takes_context


def test_a_registered_policy_is_kept_as_given() -> None:
    queue, retry = Queue("main"), Retry(max_attempts=5)
    options = task("a", queue=queue, retry=retry)(plain).options
    assert options.queue is queue
    assert options.retry is retry


@pytest.mark.parametrize("given", [None, "nightly", [None], ["nightly"]])
def test_what_is_no_list_of_schedules_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"schedules: .* is no "):
        task("work", schedules=given)(lambda: None)
