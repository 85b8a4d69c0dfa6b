"""What the application does in the background."""

from __future__ import annotations

from pydantic import BaseModel, Field

from app import provider
from app.queues import exports, invoice_sync
from runlane import Context, Exponential, NonRetryable, Release, Retry, Schedule, task


class SyncInvoices(BaseModel):
    customer: str = Field(min_length=1, max_length=200, examples=["acme"])


@task(
    "invoices.sync",
    queue=invoice_sync,
    concurrency_key=lambda payload: payload.customer,
    retry=Retry(max_attempts=5, backoff=Exponential("1s", max="5m")),
    schedules=[
        # Off, since an example should do nothing by itself; `runlane schedules trigger invoices.nightly` makes a run of it.
        Schedule("invoices.nightly", cron="30 2 * * *", timezone="America/New_York", payload=SyncInvoices(customer="acme"), enabled=False),
    ],
)
def sync_invoices(payload: SyncInvoices, ctx: Context) -> dict[str, int]:
    """Bring a customer's invoices up to date. An attempt that fails starts over, so pages must be safe to read twice."""
    invoices: list[provider.Invoice] = []
    page = 1
    while found := provider.list_invoices(payload.customer, page, request_id=f"{ctx.run_id}/{ctx.attempt}"):
        invoices += found
        page += 1
        ctx.check()  # Between two pages is a good place to stop, if somebody cancelled the run or time is up.
    return {"invoices": len(invoices), "cents": sum(invoice.cents for invoice in invoices)}


class SendReceipt(BaseModel):
    invoice_id: str
    address: str


# However often the same receipt is triggered, within 30 days it is sent once.
@task("receipts.send", idempotency_key=lambda payload: f"receipt/{payload.invoice_id}")
def send_receipt(payload: SendReceipt) -> None:
    """Mail the receipt of an invoice."""
    provider.send_email(payload.address, f"Your receipt for {payload.invoice_id}")


class FetchExport(BaseModel):
    export_id: str


@task("exports.fetch", queue=exports)
def fetch_export(payload: FetchExport, ctx: Context) -> dict[str, str] | Release:
    """Wait for an export without holding a slot, a worker or a Lambda: while it is not ready, the run is released."""
    try:
        address = provider.fetch_export(payload.export_id)
    except provider.UnknownExport as error:
        raise NonRetryable(f"there is no export {payload.export_id}") from error
    if address is None:
        return ctx.release("2s", reason="the export is not ready")
    return {"address": address}
