"""Keeps this process's leases, and learns what was asked of its runs, while attempts outlive an interval."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from threading import Event, Lock, Thread

from runlane.domain.ids import RunId
from runlane.ports.clock import Clock
from runlane.ports.stores import DeliveryStore, LeaseState
from runlane.ports.telemetry import Telemetry
from runlane.services.attempt import Attempt

INTERVAL = 5.0
"""Seconds between looks at what was asked of the runs."""


class Heartbeat:
    """All leases of the process. Quick attempts cost an entry; the thread lives only while a long one does.

    `beside` is another of the process, whose end is this one's too: leases of its own are not counted as the other's.
    """

    def __init__(
        self,
        store: DeliveryStore,
        clock: Clock,
        telemetry: Telemetry,
        *,
        lease_for: timedelta,
        interval: float = INTERVAL,
        beside: Heartbeat | None = None,
    ) -> None:
        self.interval = min(interval, lease_for.total_seconds() / 3)
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._lease_for = lease_for
        self._held: dict[RunId, Attempt] = {}
        self._lock = Lock()
        self._closed: Event = Event() if beside is None else beside._closed
        self._is_beating = False
        self._extended_at = 0.0
        self._is_failing = False

    def hold(self, attempts: Iterable[Attempt]) -> None:
        self._held.update((attempt.claim.run_id, attempt) for attempt in attempts)

    def drop(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if self._held.get(attempt.claim.run_id) is attempt:
                del self._held[attempt.claim.run_id]

    def holds(self, run_id: RunId) -> bool:
        return run_id in self._held

    @property
    def held(self) -> tuple[Attempt, ...]:
        """What the process has under a lease, in all its deliveries."""
        return tuple(self._held.values())

    def count(self) -> int:
        return len(self._held)

    @property
    def is_failing(self) -> bool:
        """Leases are held that could not be looked at last time: a process that cannot keep what it has must not take more."""
        return self._is_failing and bool(self._held)

    def ensure_beating(self) -> None:
        """Start the thread unless it runs; it ends by itself when no lease is held."""
        with self._lock:
            if self._is_beating or self._closed.is_set():
                return
            self._is_beating = True
        # An attempt has outlived one interval, so its lease is at least that old.
        self._extended_at = self._clock.monotonic() - self.interval
        Thread(target=self._run, name="runlane-heartbeat", daemon=True).start()

    def beat(self) -> None:
        """Extend every lease of the process, or only look at them while they are fresh."""
        held = dict(self._held)
        if not held:
            return
        tokens = {run_id: attempt.claim.token for run_id, attempt in held.items()}
        now = self._clock.monotonic()
        # Extending at the last look before a third of the lease has passed.
        if now + self.interval - self._extended_at > self._lease_for.total_seconds() / 3:
            states = self._store.heartbeat(tokens, lease_for=self._lease_for)
            self._extended_at = now
        else:
            states = self._store.read_leases(tokens)
        self._note(held, states)

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while self._goes_on():
            try:
                self.beat()
                self._is_failing = False
            except Exception as error:  # A thread that died here would lose every lease of the process.
                self._is_failing = True
                self._telemetry.emit("heartbeat.failed", error=repr(error), leases=len(self._held))
            self._closed.wait(self.interval)

    def _goes_on(self) -> bool:
        with self._lock:
            self._is_beating = bool(self._held) and not self._closed.is_set()
            self._is_failing = self._is_failing and self._is_beating
            return self._is_beating

    def _note(self, held: dict[RunId, Attempt], states: Iterable[LeaseState]) -> None:
        found = {state.run_id: state for state in states}
        for run_id, attempt in held.items():
            state = found.get(run_id)
            if state is not None:
                attempt.cancellation_requested = attempt.cancellation_requested or state.cancellation_requested
            elif self._held.get(run_id) is attempt and attempt.settlement is None:
                attempt.lease_lost = True
                self._telemetry.emit("lease.lost", run_id=run_id, task=attempt.claim.task, attempt=attempt.claim.attempt)
