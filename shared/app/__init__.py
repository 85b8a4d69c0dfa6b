"""An application: queues, tasks, and the runtime made of them. Replace it with your own; RUNLANE_APP names it, app:runlane by default."""

from __future__ import annotations

from functools import cache

from app import queues, tasks
from runlane import Runlane
from runlane.bootstrap import environment_runlane


@cache
def runlane() -> Runlane:
    return environment_runlane(
        queues=[queues.main, queues.invoice_sync, queues.exports],
        tasks=[tasks.sync_invoices, tasks.send_receipt, tasks.fetch_export],
    )
