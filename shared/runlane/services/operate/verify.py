"""Whether every promise has been kept, read from what was committed."""

from __future__ import annotations

import time
from datetime import datetime

from runlane.domain.ids import parse_run_id
from runlane.domain.verification import Scope, Verification
from runlane.ports.storage import Storage
from runlane.services.operate.arguments import invalid


def verify(storage: Storage, *, since: datetime | None, queue: str | None, run: str | None, limit: int) -> Verification:
    if since is not None and since.tzinfo is None:
        raise invalid("since", "has no zone; give a time with tzinfo, such as UTC")
    if run is not None and (since is not None or queue is not None):
        raise invalid("run", "goes with neither since nor queue; name one scope")
    if limit < 1:
        raise invalid("limit", f"{limit} is less than 1")
    began_at = time.monotonic()
    found = storage.verify(Scope(since, queue, None if run is None else parse_run_id(run)), limit)
    return Verification(all(invariant.holds for invariant in found), time.monotonic() - began_at, found)
