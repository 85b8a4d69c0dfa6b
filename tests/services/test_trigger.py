from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from runlane.domain.errors import ConfigurationError, ContractError, NotFoundError, PayloadError, UnavailableError
from runlane.domain.queue import Queue
from runlane.domain.retry import Retry
from runlane.domain.task import task
from runlane.ports.stores import Wakeup
from runlane.services.trigger import MAX_ITEMS, Item
from tests.services.fakes import run_id
from tests.services.tasks import Bench, Order, main, ship

slow = Queue("slow", concurrency_limit=1)


@task(
    "orders.bill",
    queue=slow,
    retry=Retry(max_attempts=7),
    tenant=lambda order: f"t{order.number}",
    concurrency_key="k",
    idempotency_key=lambda order: order.note,
    idempotency_ttl="active",
    priority=5,
    start_timeout="1h",
)
def bill(order: Order) -> None: ...


@task("orders.odd", tenant=lambda order: order.nothing)
def odd(order: Order) -> None: ...


@pytest.fixture
def bench() -> Bench:
    return Bench([ship, bill, odd], [main, slow])


class NoZone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        raise RuntimeError

    def dst(self, moment: datetime | None) -> None: ...

    def tzname(self, moment: datetime | None) -> None: ...


@dataclass
class FakeConnection:
    autocommit: bool = False
    calls: list[str] = field(default_factory=list)

    def cursor(self) -> None: ...

    def commit(self) -> None:
        self.calls.append("commit")

    def rollback(self) -> None:
        self.calls.append("rollback")


def wakeup() -> Wakeup:
    return Wakeup(run_id(), "main")


def test_the_default_queue_is_taken_when_nobody_names_one(bench: Bench) -> None:
    result = bench.runlane.trigger(ship, {"number": 1})
    assert (result.run.queue, result.run.task, result.outcome) == ("main", "orders.ship", "created")


def test_the_tasks_options_hold_and_its_functions_see_the_validated_payload(bench: Bench) -> None:
    bench.runlane.trigger(bill, {"number": "3", "note": "n"})
    (run,) = bench.storage.triggers.recorded
    assert (run.queue, run.tenant, run.concurrency_key, run.priority, run.max_attempts) == ("slow", "t3", "k", 5, 7)
    assert (run.idempotency_key, run.idempotency_ttl, run.start_timeout) == ("n", None, timedelta(hours=1))
    assert run.payload_hash is not None


def test_the_calls_options_win(bench: Bench) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    bench.runlane.trigger(
        bill, Order(number=1), queue="main", run_at=at, priority=-1, tenant="a", concurrency_key="b", idempotency_key="c",
        idempotency_ttl="2d", singleton_key="d", singleton_mode="latest", actor="e", trace={"f": "g"}, meta={"at": at},
    )  # fmt: skip
    (run,) = bench.storage.triggers.recorded
    assert (run.queue, run.run_at, run.priority, run.tenant, run.concurrency_key) == ("main", at, -1, "a", "b")
    assert (run.idempotency_key, run.idempotency_ttl, run.singleton_key, run.actor) == ("c", timedelta(days=2), "d", "e")
    assert run.singleton_mode == "latest"
    assert (run.trace, run.meta) == ({"f": "g"}, {"at": "2030-01-01T00:00:00Z"})


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"delay": "1s", "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "option_invalid"),
        ({"run_at": datetime(2030, 1, 1)}, "option_invalid"),  # noqa: DTZ001
        ({"delay": "soon"}, "duration_invalid"),
        ({"priority": 601}, "priority_invalid"),
        ({"tenant": ""}, "key_invalid"),
        ({"singleton_mode": "latest"}, "option_invalid"),
        ({"singleton_mode": "newest", "singleton_key": "s"}, "option_invalid"),
        ({"prority": 1}, "option_unknown"),
        ({"meta": {"a": "\0"}}, "option_invalid"),
        ({"meta": {"a": 10**5000}}, "option_invalid"),
        ({"dispatch": "later"}, "option_invalid"),
        ({"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))}, "option_invalid"),
        ({"run_at": datetime(1, 1, 1, tzinfo=UTC)}, "option_invalid"),
        ({"run_at": datetime(2030, 1, 1, tzinfo=NoZone())}, "option_invalid"),
        ({"trace": {"a": 1}}, "option_invalid"),
        ({"meta": ["a"]}, "option_invalid"),
        ({"queue": 5}, "queue_invalid"),
        ({"connection": "dsn"}, "connection_invalid"),
    ],
)
def test_a_malformed_option_is_refused(bench: Bench, options: Any, code: str) -> None:
    with pytest.raises(ContractError) as caught:
        bench.runlane.trigger(ship, {"number": 1}, **options)
    assert caught.value.code == code
    assert not bench.storage.triggers.recorded


def test_strange_tasks_and_queues_are_refused(bench: Bench) -> None:
    @task("orders.ship")
    def twin(order: Order) -> None: ...

    with pytest.raises(ConfigurationError):
        bench.runlane.trigger(twin, {"number": 1})
    with pytest.raises(ConfigurationError):
        bench.runlane.trigger(ship, {"number": 1}, queue=Queue("slow", concurrency_limit=2))
    with pytest.raises(NotFoundError):
        bench.runlane.trigger(ship, {"number": 1}, queue="nowhere")
    for stranger in (None, "orders.ship", lambda order: None):
        with pytest.raises(ContractError):
            bench.runlane.trigger(stranger, {"number": 1})  # type: ignore[arg-type]
    with pytest.raises(ContractError):
        bench.runlane.trigger_many(ship, 5)  # type: ignore[arg-type]


def test_a_function_of_the_payload_that_raises_is_the_callers_error(bench: Bench) -> None:
    with pytest.raises(ContractError) as caught:
        bench.runlane.trigger(odd, {"number": 1})
    assert caught.value.code == "option_failed"


def test_a_function_of_the_payload_whose_answer_the_call_gives_is_not_asked(bench: Bench) -> None:
    bench.runlane.trigger(odd, {"number": 1}, tenant="given")
    assert [run.tenant for run in bench.storage.triggers.recorded] == ["given"]


def test_an_eager_trigger_publishes_after_recording_and_marks_later(bench: Bench) -> None:
    bench.storage.triggers.wakeups = (wakeup(),)
    bench.runlane.trigger(ship, {"number": 1})
    assert bench.storage.triggers.calls == ["eager"]
    assert len(bench.transport.published) == 1
    bench.runlane.close()
    assert bench.storage.triggers.calls == ["eager", "marked"]


def test_a_publish_failure_never_fails_the_trigger(bench: Bench) -> None:
    bench.storage.triggers.wakeups = (wakeup(),)
    bench.transport.error = RuntimeError("gone")
    assert bench.runlane.trigger(ship, {"number": 1}).outcome == "created"
    assert [result.published for result in bench.storage.triggers.marked] == [False]


def test_a_full_window_is_dispatched_once_more_after_the_commit(bench: Bench) -> None:
    bench.storage.triggers.starved = ("main",)
    bench.runlane.trigger(ship, {"number": 1})
    assert bench.storage.triggers.dispatched == [("main",)]
    bench.storage.triggers.dispatch_error = UnavailableError("storage_unavailable", "gone")
    bench.runlane.trigger(ship, {"number": 1})


def test_many_are_validated_before_any_is_recorded_and_every_bad_index_is_listed(bench: Bench) -> None:
    items = [{"number": 1}, {"number": "x"}, Item({"number": 2}, priority=900), Order(number=3)]
    with pytest.raises(ContractError) as caught:
        bench.runlane.trigger_many(ship, items)
    assert [(item["index"], item["code"]) for item in caught.value.meta["items"]] == [(1, "payload_invalid"), (2, "priority_invalid")]
    assert caught.value.meta["items"][0]["fields"][0]["path"] == "number"
    assert not bench.storage.triggers.recorded


def test_items_may_have_options_of_their_own(bench: Bench) -> None:
    results = bench.runlane.trigger_many(ship, [{"number": 1}, Item({"number": 2}, priority=9)], priority=3, tenant="t")
    assert [(run.priority, run.tenant) for run in bench.storage.triggers.recorded] == [(3, "t"), (9, "t")]
    assert len(results) == 2
    assert bench.runlane.trigger_many(ship, []) == ()


def test_items_may_say_what_their_call_leaves_out() -> None:
    bench = Bench([ship], [slow, Queue("fast")])
    items = [Item({"number": 1}, queue=slow, singleton_key="a"), Item({"number": 2}, queue="fast", singleton_key="b")]
    bench.runlane.trigger_many(ship, items, singleton_mode="latest")
    assert [(run.queue, run.singleton_key) for run in bench.storage.triggers.recorded] == [("slow", "a"), ("fast", "b")]


def test_too_many_items_are_refused(bench: Bench) -> None:
    with pytest.raises(ContractError, match="10001"):
        bench.runlane.trigger_many(ship, [None] * (MAX_ITEMS + 1))


def test_a_bare_connection_only_records(bench: Bench) -> None:
    connection = FakeConnection()
    result = bench.runlane.trigger(ship, {"number": 1}, connection=connection)
    assert bench.storage.triggers.calls == ["recorded"]
    assert connection.calls == []
    bench.storage.triggers.wakeups = (wakeup(),)
    assert bench.runlane.dispatch(result) == 1


def test_an_autocommit_connection_is_refused(bench: Bench) -> None:
    with pytest.raises(ContractError, match="autocommit"):
        bench.runlane.trigger(ship, {"number": 1}, connection=FakeConnection(autocommit=True))
    with pytest.raises(ContractError, match="autocommit"), bench.runlane.transaction(FakeConnection(autocommit=True)):
        pass


def test_a_joined_transaction_commits_then_dispatches(bench: Bench) -> None:
    connection = FakeConnection()
    with bench.runlane.transaction(connection) as joined:
        joined.trigger(ship, {"number": 1})
        joined.trigger_many(bill, [{"number": 1}])
        assert not bench.storage.triggers.dispatched
    assert connection.calls == ["commit"]
    assert bench.storage.triggers.dispatched == [{"main", "slow"}]


def test_a_joined_transaction_that_raises_is_rolled_back(bench: Bench) -> None:
    connection = FakeConnection()
    with pytest.raises(PayloadError), bench.runlane.transaction(connection) as joined:
        joined.trigger(ship, {"number": "x"})
    assert connection.calls == ["rollback"]
    assert not bench.storage.triggers.dispatched


def test_trouble_after_the_commit_does_not_fail_the_caller(bench: Bench) -> None:
    bench.storage.triggers.dispatch_error = UnavailableError("storage_unavailable", "gone")
    with bench.runlane.transaction(FakeConnection()) as joined:
        joined.trigger(ship, {"number": 1})
    assert bench.telemetry.named("dispatch.failed")
