"""Whether every promise has been kept, read from what was committed."""

from __future__ import annotations

import time
from datetime import datetime

from runlane.domain.ids import parse_run_id
from runlane.domain.shown import shown
from runlane.domain.verification import Scope, Verification
from runlane.ports.storage import Storage
from runlane.services.operate.arguments import checked_time, invalid

MOST_FAULTS = 1000
"""Of one check: who has more needs no longer list."""


def verify(storage: Storage, *, since: datetime | None, queue: str | None, run: str | None, limit: int) -> Verification:
    since = checked_time(since, "since")
    if run is not None and (since is not None or queue is not None):
        raise invalid("run", "goes with neither since nor queue; name one scope")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_FAULTS:
        raise invalid("limit", f"{shown(limit)} is no whole number from 1 to {MOST_FAULTS}")
    began_at = time.monotonic()
    found = storage.verify(Scope(since, queue, None if run is None else parse_run_id(run)), limit)
    return Verification(all(invariant.holds for invariant in found), time.monotonic() - began_at, found)
