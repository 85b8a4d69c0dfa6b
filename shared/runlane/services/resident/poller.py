"""How a worker without messages finds its runs: it claims what is dispatched, and sees to what nobody has dispatched."""

from __future__ import annotations

from datetime import timedelta
from math import inf

from runlane.domain.backoff import Backoff
from runlane.domain.durations import ZERO
from runlane.domain.errors import RunlaneError
from runlane.ports.storage import Storage
from runlane.ports.stores import ClaimBatch, Look, Wakeup
from runlane.services.resident.vitals import Vitals
from runlane.services.stop import Stop
from runlane.services.worker import Worker

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
"""Seconds between looks: after work, and doubling to this while there is none."""

LIMIT = 500
"""Timers fired in one step."""


class Poller:
    """An intake from storage. `until_dry`: it closes when nothing is due, or when storage fails, which is then its `error`."""

    def __init__(self, worker: Worker, storage: Storage, stop: Stop, vitals: Vitals, *, until_dry: bool = False) -> None:
        self.error: RunlaneError | None = None
        self._worker = worker
        self._storage = storage
        self._queues = worker.settings.queues
        self._stop = stop
        self._vitals = vitals
        self._until_dry = until_dry
        self._is_dry = False
        self._is_rung = True
        self._next_at = -inf
        self._tends_at = -inf
        self._pause = Backoff(SHORTEST_PAUSE, LONGEST_PAUSE)
        self._trouble = Backoff()

    @property
    def is_open(self) -> bool:
        return not (self._stop.is_asked or self._is_dry or self.error)

    @property
    def next_at(self) -> float:
        return -inf if self._is_rung else self._next_at

    def ring(self) -> None:
        """Called from any thread: a run may have been dispatched."""
        self._is_rung = True

    def rest(self, now: float) -> None:
        self._pause.reset()
        self._is_dry = False
        self._next_at = now + (0.0 if self._until_dry else self._pause.next())

    def tend(self, now: float) -> tuple[Wakeup, ...]:
        """Where a backlog leaves no moment to look, timers that are due would stay behind it, whoever's they are."""
        if now < self._tends_at:
            return ()
        self._tends_at = now + LONGEST_PAUSE
        try:
            return self._dispatched(self._worker.store.look(self._queues))
        except RunlaneError as error:
            self._worker.telemetry.emit("poll.failed", error=error.code)
            return ()

    def take(self, room: int) -> ClaimBatch:
        now = self._worker.clock.monotonic()
        is_rung, self._is_rung = self._is_rung, False
        try:
            found = self._claim(room) if is_rung else ClaimBatch()
            found = found if found.claims else self._search(room, now, found.wakeups)
        except RunlaneError as error:
            return self._fail(error, now)
        self._trouble.reset()
        self._vitals.note_storage()
        if found.claims:
            self.rest(now)
        return found

    def _claim(self, room: int) -> ClaimBatch:
        settings = self._worker.settings
        return self._worker.store.claim_oldest(self._queues, limit=room, lease_for=settings.lease_for, worker=settings.name)

    def _search(self, room: int, now: float, wakeups: tuple[Wakeup, ...]) -> ClaimBatch:
        """Dispatch what was only recorded, fire the timers that are due, and claim; or say when to look again."""
        look = self._worker.store.look(self._queues)
        self._rest_until_due(look, now)
        wakeups += self._dispatched(look)
        if not (look.is_dispatched or wakeups):
            return ClaimBatch(wakeups=wakeups)
        found = self._claim(room)
        taken = {run.run_id for run in found.claims}
        return found._replace(wakeups=(*(one for one in wakeups if one.run_id not in taken), *found.wakeups))

    def _rest_until_due(self, look: Look, now: float) -> None:
        due_in, starts_in = _seconds(look.due_in), _seconds(look.starts_in)
        # A throttled start whose time has passed, and that was not made, waits for somebody who is about to make it.
        self._next_at = now + min(self._pause.next(), max(min(due_in, starts_in if starts_in >= 0 else inf), SHORTEST_PAUSE))
        # What a throttle holds back is due, and worth waiting for.
        self._is_dry = self._until_dry and not (look.is_dispatched or look.recorded or due_in <= 0 or starts_in < inf)

    def _dispatched(self, look: Look) -> tuple[Wakeup, ...]:
        storage = self._storage
        recorded = storage.triggers.dispatch(look.recorded) if look.recorded else ()
        is_due = look.due_in is not None and look.due_in <= timedelta(0)
        return (*recorded, *storage.maintenance.due_timers(look_ahead=ZERO, limit=LIMIT).wakeups) if is_due else recorded

    def _fail(self, error: RunlaneError, now: float) -> ClaimBatch:
        self._worker.telemetry.emit("poll.failed", error=error.code)
        if self._until_dry or not error.retryable:
            self.error = error
        self._next_at = now + self._trouble.next()
        return ClaimBatch()


def _seconds(time: timedelta | None) -> float:
    return inf if time is None else time.total_seconds()
