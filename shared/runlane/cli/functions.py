"""The Lambda handlers for `runlane dev` and `runlane demo` in a folder that has none of its own, as after `pip install`."""

from __future__ import annotations

from typing import Any

from runlane.bootstrap import runtime


def worker(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """SQS batch in, partial batch response out."""
    return runtime().deliver_sqs(event, remaining=lambda: context.get_remaining_time_in_millis() / 1000)


def maintenance(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Schedule in, one tick, counts out."""
    return runtime().tick(remaining=lambda: context.get_remaining_time_in_millis() / 1000)
