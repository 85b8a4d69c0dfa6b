"""Runs whose time has come, and wakeups sent ahead for those whose time comes before the next pass."""

from __future__ import annotations

from datetime import timedelta

from runlane.ports.maintenance import PhaseResult
from runlane.services.maintenance.phase import LIMIT, Upkeep

LOOK_AHEAD = timedelta(minutes=4)
"""Minute schedules may fire two minutes apart, and a pass may take one."""


def due_timers(upkeep: Upkeep) -> PhaseResult:
    return upkeep.published(upkeep.store.due_timers(look_ahead=LOOK_AHEAD, limit=LIMIT))
