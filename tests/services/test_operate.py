from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from runlane.domain.errors import ConfigurationError, ConflictError, ContractError, NotFoundError
from runlane.domain.ids import RunId
from runlane.domain.queue import Queue
from runlane.domain.records import Page, RunFilter, RunRecord
from runlane.domain.run import Status
from runlane.ports.stores import Wakeup
from tests.services.fakes import run_id
from tests.services.tasks import Bench, main, ship

ODD: list[dict[str, Any]] = [
    {"limit": "5"},
    {"limit": True},
    {"status": 5},
    {"task": 5},
    {"queue": 5},
    {"tenant": "\0"},
    {"concurrency_key": "\ud800"},
    {"created_after": "2026-01-01"},
    {"created_before": datetime.max.replace(tzinfo=UTC)},
]


@dataclass
class FakeRecord:
    status: Status


@dataclass
class FakeRuns:
    statuses: list[Status] = field(default_factory=list)
    status: Status | None = None
    wakeups: tuple[Wakeup, ...] = ()
    filters: list[RunFilter] = field(default_factory=list)
    looked_for: list[tuple[str, str | None, str | None, bool]] = field(default_factory=list)

    def get_run(self, one: RunId) -> Any:
        return FakeRecord(self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]) if self.statuses else None

    def list_runs(self, run_filter: RunFilter, *, limit: int, cursor: str | None) -> Page:
        self.filters.append(run_filter)
        return Page()

    def list_events(self, one: RunId) -> Sequence[Any]:
        return ()

    def list_attempts(self, one: RunId) -> Sequence[Any]:
        return ()

    def cancel_run(self, one: RunId, *, actor: str | None, reason: str | None) -> tuple[Status | None, tuple[Wakeup, ...]]:
        return self.status, self.wakeups

    def find_owner(
        self, task: str, *, singleton_key: str | None = None, idempotency_key: str | None = None, retained: bool = False
    ) -> RunRecord | None:
        self.looked_for.append((task, singleton_key, idempotency_key, retained))
        return None

    def reset_idempotency_key(self, task: str, key: str) -> bool:
        return (task, key) == ("orders.ship", "k")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench()
    bench.storage.runs = FakeRuns()
    monkeypatch.setattr(bench.runlane.runs, "_store", bench.storage.runs)
    monkeypatch.setattr(bench.runlane.idempotency_keys, "_store", bench.storage.runs)
    return bench


def test_a_malformed_id_and_an_unknown_one_are_told_apart(bench: Bench) -> None:
    with pytest.raises(ContractError):
        bench.runlane.runs.get("nonsense")
    for look in (bench.runlane.runs.get, bench.runlane.runs.events, bench.runlane.runs.attempts, bench.runlane.runs.cancel):
        with pytest.raises(NotFoundError):
            look(run_id())


def test_a_run_that_never_started_has_no_attempts(bench: Bench) -> None:
    bench.storage.runs.statuses = [Status.QUEUED]
    assert bench.runlane.runs.attempts(run_id()) == ()


def test_filters_are_checked_and_passed_on(bench: Bench) -> None:
    bench.runlane.runs.list(status="failed", task=ship, queue=main)
    bench.runlane.runs.list(status=[Status.QUEUED, "running"])
    first, second = bench.storage.runs.filters
    assert (first.statuses, first.task, first.queue) == (frozenset({Status.FAILED}), "orders.ship", "main")
    assert second.statuses == frozenset({Status.QUEUED, Status.RUNNING})


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 201}, {"status": "lost"}, {"created_after": datetime(2026, 1, 1)}, *ODD])  # noqa: DTZ001
def test_a_malformed_filter_is_refused(bench: Bench, wrong: Any) -> None:
    with pytest.raises(ContractError):
        bench.runlane.runs.list(**wrong)


def test_a_filter_by_a_queue_with_another_policy_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigurationError):
        bench.runlane.runs.list(queue=Queue("main", total_limit=1))


def test_a_cancellation_publishes_what_it_frees(bench: Bench) -> None:
    bench.storage.runs.status, bench.storage.runs.wakeups = Status.CANCELLED, (Wakeup(run_id(), "main"),)
    assert bench.runlane.runs.cancel(run_id(), actor="me") == Status.CANCELLED
    assert len(bench.transport.published) == 1


def test_waiting_ends_with_the_run_or_with_the_time(bench: Bench) -> None:
    bench.storage.runs.statuses = [Status.QUEUED, Status.RUNNING, Status.SUCCEEDED]
    assert bench.runlane.runs.wait(run_id(), "5s").status == Status.SUCCEEDED
    bench.storage.runs.statuses = [Status.RUNNING]
    with pytest.raises(ConflictError) as caught:
        bench.runlane.runs.wait(run_id(), "10ms")
    assert caught.value.code == "wait_timeout"


def test_queues_are_named_or_given(bench: Bench) -> None:
    queues = bench.runlane.queues
    queues.stats()
    queues.stats(main)
    queues.pause("main", tenant="t")
    queues.set_weight(main, "t", 3)
    assert bench.storage.queues.asked == [["main"], ["main"], ("main", "t", None), ("main", "t", 3)]
    with pytest.raises(NotFoundError):
        queues.pause("nowhere")
    with pytest.raises(ContractError):
        queues.set_weight("main", "t", 0)


def test_resuming_publishes(bench: Bench) -> None:
    bench.storage.queues.wakeups = (Wakeup(run_id(), "main"), Wakeup(run_id(), "main"))
    assert bench.runlane.queues.resume("main") == 2


def test_putting_policies_in_force_publishes_what_raised_limits_give_out(bench: Bench) -> None:
    bench.storage.queues.wakeups = (Wakeup(run_id(), "main"),)
    assert bench.runlane.queues.put_in_force(actor="me") == ("main",)
    assert len(bench.transport.published) == 1


def test_an_idempotency_key_is_reset_by_task_and_key(bench: Bench) -> None:
    assert bench.runlane.idempotency_keys.reset(ship, "k")
    assert not bench.runlane.idempotency_keys.reset("orders.ship", "other")


def test_odd_actors_reasons_and_tasks_never_reach_storage(bench: Bench) -> None:
    with pytest.raises(ContractError):
        bench.runlane.queues.put_in_force(actor="\0")
    with pytest.raises(ContractError):
        bench.runlane.queues.stats(5)  # type: ignore[arg-type]
    with pytest.raises(ContractError):
        bench.runlane.idempotency_keys.reset(5, "k")  # type: ignore[arg-type]
    bench.storage.runs.status = Status.CANCELLED
    assert bench.runlane.runs.cancel(run_id(), reason=5) == Status.CANCELLED  # type: ignore[arg-type]


def test_an_owner_is_looked_for_by_one_key(bench: Bench) -> None:
    runs = bench.runlane.runs
    assert runs.find_active(ship, singleton_key="s") is None
    assert runs.find_active("orders.ship", idempotency_key="i") is None
    assert runs.find_current(ship, idempotency_key="i") is None
    assert bench.storage.runs.looked_for == [
        ("orders.ship", "s", None, False),
        ("orders.ship", None, "i", False),
        ("orders.ship", None, "i", True),
    ]


@pytest.mark.parametrize("keys", [{}, {"singleton_key": "s", "idempotency_key": "i"}, {"singleton_key": ""}])
def test_a_search_without_one_key_is_refused(bench: Bench, keys: dict[str, str]) -> None:
    with pytest.raises(ContractError) as caught:
        bench.runlane.runs.find_active(ship, **keys)
    assert caught.value.meta["field"] == "singleton_key"


@pytest.mark.parametrize(
    ("field", "odd"),
    [
        *(("limit", limit) for limit in (0, -1, 10**30, 1001, "x", 1.5, True, None)),
        *(("since", since) for since in ("x", 5, datetime(2026, 1, 1), datetime.max.replace(tzinfo=UTC))),  # noqa: DTZ001
    ],
)
def test_an_odd_scope_of_verify_is_refused(bench: Bench, field: str, odd: Any) -> None:
    with pytest.raises(ContractError) as caught:
        bench.runlane.verify(**{field: odd})
    assert (caught.value.code, caught.value.meta["field"]) == ("option_invalid", field)
