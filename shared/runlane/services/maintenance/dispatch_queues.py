"""Capacity that is free although runs wait for it, whoever failed to give it out."""

from __future__ import annotations

from runlane.ports.maintenance import PhaseResult
from runlane.services.maintenance.phase import LIMIT, Upkeep


def dispatch_queues(upkeep: Upkeep) -> PhaseResult:
    return upkeep.published(upkeep.store.dispatch_queues(limit=LIMIT))
