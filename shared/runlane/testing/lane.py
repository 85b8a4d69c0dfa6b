"""A lane for tests: a real Postgres, and a transport that only remembers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from runlane.adapters.postgres.aging import PostgresAging
from runlane.adapters.postgres.connection import FixedSource, Session
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.ports.stores import PublishResult, Wakeup
from runlane.runtime import Runlane
from runlane.services.lane import Lane


class RecordingTransport:
    """Takes every wakeup of every queue and delivers none. `wakeups`: what was published, in order."""

    def __init__(self) -> None:
        self.wakeups: list[Wakeup] = []

    def publish(self, wakeups: Sequence[Wakeup]) -> tuple[PublishResult, ...]:
        self.wakeups += wakeups
        return tuple(PublishResult(wakeup.run_id, published=True, hint=wakeup.hint) for wakeup in wakeups)

    def serves(self, queue: str) -> bool:
        return True

    def keeps_order(self, queue: str) -> bool:
        return False

    def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class IsolatedLane(Lane):
    """A lane whose database belongs to the test, so that its rows may be made old."""

    aging: PostgresAging | None = None


@contextmanager
def on_database(runlane: Runlane, dsn: str, *, schema: str = "runlane") -> Iterator[RecordingTransport]:
    """Bind a runtime to a migrated test database for a while, its queue policies in force there; yields what records its wakeups.

    Afterwards the runtime has the lane that it had. The `runlane` fixture does this; call it where there is no pytest.
    Nothing of the runtime may be under way at either end.
    """
    transport, storage = RecordingTransport(), PostgresStorage(dsn, schema=schema)
    aging = PostgresAging(Session(FixedSource(dsn), schema))
    before = runlane.rebind(IsolatedLane(storage, transport, aging=aging))
    try:
        runlane.queues.put_in_force(actor="test")
        yield transport
    finally:
        runlane.disconnect()
        aging.close()
        runlane.rebind(before)
