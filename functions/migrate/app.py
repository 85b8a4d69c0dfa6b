"""Deploy-time event in, pending migrations applied, their names out."""

from __future__ import annotations

from typing import Any

from runlane.cold_start import uncollected

with uncollected():
    from runlane.bootstrap import migrate, migrate_for_stack


def handler(event: dict[str, Any] | None, context: Any) -> dict[str, Any]:
    """Apply what is pending of a phase, `before` or `after` the deploy.

    A stack's custom resource names `Phase` and `Release` in its properties, and is answered. By hand: `event["phase"]`, or everything.
    """
    if event and "ResponseURL" in event:
        return migrate_for_stack(event, remaining=lambda: context.get_remaining_time_in_millis() / 1000)
    return {"applied": list(migrate(phase=(event or {}).get("phase")))}
