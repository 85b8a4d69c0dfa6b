"""Deploy-time event in, pending migrations applied, their names out."""

from __future__ import annotations

from typing import Any

from runlane.bootstrap import migrate


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Apply what is pending of `event["phase"]` (`before` or `after` the deploy); without a phase, everything."""
    return {"applied": list(migrate(phase=event.get("phase")))}
