"""The example application, tested as its users test theirs."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from app import provider
from app import runlane as application
from app.queues import exports, invoice_sync, main
from app.tasks import FetchExport, SendReceipt, SyncInvoices, fetch_export, send_receipt, sync_invoices
from runlane import Runlane
from runlane.testing import TaskOutcome, assert_triggered, drain, run_task


@pytest.fixture(autouse=True)
def _no_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "LATENCY", 0)


def sync(number: int, **options: Any) -> TaskOutcome:
    return run_task(sync_invoices, SyncInvoices(customer="acme"), run_id=f"01900000-0000-7000-8000-{number:012}", **options)


def test_a_sync_reads_every_page() -> None:
    outcome = next(found for number in range(100) if (found := sync(number)).succeeded)
    assert outcome.result["invoices"] == provider.PAGES * provider.INVOICES_ON_A_PAGE


def test_a_sync_may_stop_after_each_page() -> None:
    looks = iter([False, True])
    assert any(sync(number, cancelled=lambda: next(looks, True)).cancelled for number in range(3))


def test_the_provider_is_down_for_the_same_requests_every_time() -> None:
    outcomes = [sync(number).retrying for number in range(50)]
    assert outcomes == [sync(number).retrying for number in range(50)]
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
    outcome = run_task(fetch_export, FetchExport(export_id=provider.start_export()))
    assert (outcome.released, outcome.delay) == (True, timedelta(seconds=2))


def test_an_export_that_is_ready_is_answered() -> None:
    old = f"export-{time.time() - 2 * provider.EXPORT_SECONDS:.3f}"
    assert run_task(fetch_export, FetchExport(export_id=old)).result == {"address": f"https://provider.example/{old}.csv"}
    assert exports.total_limit == 4


def test_an_export_that_never_was_is_not_tried_again() -> None:
    outcome = run_task(fetch_export, FetchExport(export_id="nonsense"))
    assert outcome.failed
    assert "nonsense" in str(outcome)


def test_the_application_runs_to_its_end(runlane: Runlane) -> None:
    for customer in ("acme", "globex"):
        application().trigger(sync_invoices, SyncInvoices(customer=customer))
    for _ in range(2):
        application().trigger(send_receipt, SendReceipt(invoice_id="acme-1", address="a@example.com"))
    assert_triggered(runlane, sync_invoices, count=2, queue=invoice_sync)
    assert_triggered(runlane, send_receipt, count=1, idempotency_key="receipt/acme-1")
    report = drain(runlane, through_delays=True)
    assert report.waiting == ()
    assert report.counts["invoices.sync"] == 2 + len(report.failures)
