"""A simulated invoice provider: no network and no state, so that everybody sees the same.

Every fiftieth request finds the provider down; what a request is, its caller says with `request_id`. An export is ready two
seconds after it was asked for.
"""

from __future__ import annotations

import time
import zlib
from typing import NamedTuple

PAGES = 3
INVOICES_ON_A_PAGE = 20
EXPORT_SECONDS = 2.0
LATENCY = 0.02


class ProviderDown(Exception):
    """Try again later."""


class UnknownExport(Exception):
    """There is no such export, and there will never be."""


class Invoice(NamedTuple):
    id: str
    cents: int


def list_invoices(customer: str, page: int, *, request_id: str) -> list[Invoice]:
    """One page, from 1; empty after the last. Raises ProviderDown."""
    _answer(f"{request_id}/{page}")
    if page > PAGES:
        return []
    first = (page - 1) * INVOICES_ON_A_PAGE
    return [Invoice(f"{customer}-{number}", 100 + number) for number in range(first, first + INVOICES_ON_A_PAGE)]


def start_export() -> str:
    """Ask for an export; its id, for `fetch_export`."""
    return f"export-{time.time():.3f}"


def fetch_export(export_id: str) -> str | None:
    """Where the export can be downloaded; None while it is not ready. Raises UnknownExport."""
    try:
        started_at = float(export_id.removeprefix("export-"))
    except ValueError:
        raise UnknownExport(export_id) from None
    return f"https://provider.example/{export_id}.csv" if time.time() >= started_at + EXPORT_SECONDS else None


def send_email(address: str, subject: str) -> None:
    """Raises nothing: the simulated mail always arrives."""
    time.sleep(LATENCY)


def _answer(request: str) -> None:
    time.sleep(LATENCY)
    if zlib.crc32(request.encode()) % 50 == 0:
        raise ProviderDown("503 Service Unavailable")
