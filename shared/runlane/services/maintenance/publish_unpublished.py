"""Wakeups whose publisher died or could not reach the transport."""

from __future__ import annotations

from runlane.ports.maintenance import PhaseResult
from runlane.services.maintenance.phase import LIMIT, Upkeep


def publish_unpublished(upkeep: Upkeep) -> PhaseResult:
    found = upkeep.store.claim_unpublished(limit=LIMIT)
    sent = upkeep.publisher.publish(found.wakeups)
    # While the transport refuses everything, the next pass is soon enough.
    return PhaseResult(sent, more=found.more and sent > 0)
