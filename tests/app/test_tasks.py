"""The tutorial's tasks as plain functions: calling a task calls its handler."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from app import provider
from app.queues import exports, invoice_sync, main
from app.tasks import FetchExport, SendReceipt, SyncInvoices, fetch_export, send_receipt, sync_invoices
from runlane import NonRetryable, Release


@dataclass
class Attempt:
    """What the handlers use of a context."""

    run_id: str = "run"
    attempt: int = 1
    checks: list[int] = field(default_factory=list)

    def check(self) -> None:
        self.checks.append(1)

    def release(self, delay: str, *, reason: str) -> Release:
        return Release(timedelta(seconds=float(delay.removesuffix("s"))), reason)


@pytest.fixture(autouse=True)
def _no_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "LATENCY", 0)


def synced(run_id: str) -> dict[str, int] | None:
    try:
        return sync_invoices(SyncInvoices(customer="acme"), Attempt(run_id))
    except provider.ProviderDown:
        return None


def test_a_sync_reads_every_page_and_may_stop_after_each() -> None:
    attempt = next(Attempt(f"run-{n}") for n in range(100) if synced(f"run-{n}"))
    assert sync_invoices(SyncInvoices(customer="acme"), attempt)["invoices"] == provider.PAGES * provider.INVOICES_ON_A_PAGE
    assert len(attempt.checks) == provider.PAGES


def test_the_provider_is_down_for_the_same_requests_every_time() -> None:
    outcomes = [synced(f"run-{n}") is None for n in range(50)]
    assert outcomes == [synced(f"run-{n}") is None for n in range(50)]
    assert {True, False} == set(outcomes)


def test_a_customer_is_synced_once_at_a_time() -> None:
    assert (sync_invoices.options.queue, invoice_sync.concurrency_limit) == (invoice_sync, 1)
    assert sync_invoices.options.concurrency_key(SyncInvoices(customer="acme")) == "acme"


def test_a_receipt_is_keyed_by_its_invoice() -> None:
    receipt = SendReceipt(invoice_id="acme-1", address="a@example.com")
    assert send_receipt.options.idempotency_key(receipt) == "receipt/acme-1"
    assert send_receipt.options.queue is None
    assert main.default
    send_receipt(receipt)


def test_an_export_that_is_not_ready_releases_the_run() -> None:
    assert isinstance(fetch_export(FetchExport(export_id=provider.start_export()), Attempt()), Release)


def test_an_export_that_is_ready_is_answered() -> None:
    old = f"export-{time.time() - 2 * provider.EXPORT_SECONDS:.3f}"
    assert fetch_export(FetchExport(export_id=old), Attempt()) == {"address": f"https://provider.example/{old}.csv"}
    assert exports.total_limit == 4


def test_an_export_that_never_was_is_not_tried_again() -> None:
    with pytest.raises(NonRetryable, match="nonsense"):
        fetch_export(FetchExport(export_id="nonsense"), Attempt())
