"""SQS batch in, partial batch response out."""

from __future__ import annotations

from typing import Any

from runlane.cold_start import uncollected

with uncollected():
    from runlane.bootstrap import runtime, survive_snapshots

survive_snapshots()


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Deliver the wakeups of `event["Records"]`; only those left out of the answer are acknowledged."""
    return runtime().deliver_sqs(event, remaining=lambda: context.get_remaining_time_in_millis() / 1000)
