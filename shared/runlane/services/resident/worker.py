"""The handle of a worker that lives on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread
from typing import Literal, get_args

from runlane.domain.durations import ZERO, Duration, parse_duration
from runlane.domain.errors import RunlaneError
from runlane.domain.outcome import NotStarted, Released, Settlement
from runlane.services.attempt import STOPPING, Attempt
from runlane.services.overtime import ended_as
from runlane.services.resident.tally import Tally
from runlane.services.resident.vitals import Vitals
from runlane.services.stop import Stop
from runlane.services.worker import Worker

Mode = Literal["poll", "drain", "sqs"]
MODES: tuple[Mode, ...] = get_args(Mode)

PULSE_SECONDS = 10.0
LONGEST_SILENCE = 45.0
"""Seconds without an answer after which a worker is not ready; two long polls, or four pulses."""
LAST_TRANSACTION = 2.0
"""Seconds for what `give_back` writes."""
RETRY_AFTER_EXIT = timedelta(seconds=2)
"""What ignored the stop is due again only when this process, and with it the thread, has ended."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """`attempts`: how many ended, by the status they left their runs in. `under_way`: attempts that hold a lease now. Ages in seconds,
    None before the first contact; `transport_age` is a consumer's only."""

    mode: Mode
    queues: Sequence[str]
    concurrency: int
    is_stopping: bool
    under_way: int
    attempts: dict[str, int]
    storage_age: float | None
    transport_age: float | None


class ResidentWorker:
    """Started when it is made. In mode `drain` it ends by itself, else when it is stopped, or by what breaks it."""

    def __init__(
        self,
        mode: Mode,
        queues: Sequence[str],
        worker: Worker,
        parts: Sequence[Callable[[], None]],
        *,
        stop: Stop,
        tally: Tally,
        vitals: Vitals,
        grace: Duration,
    ) -> None:
        self.grace = parse_duration(grace, "grace").total_seconds()
        self._mode = mode
        self._queues = tuple(queues)
        self._worker = worker
        self._stop = stop
        self._tally = tally
        self._vitals = vitals
        self._breakage: BaseException | None = None
        self._threads = [Thread(target=self._run, args=(part,), name="runlane-resident", daemon=True) for part in parts]
        for thread in self._threads:
            thread.start()
        Thread(target=self._pulse, name="runlane-pulse", daemon=True).start()

    @property
    def state(self) -> WorkerState:
        settings, vitals = self._worker.settings, self._vitals
        return WorkerState(
            self._mode, self._queues, settings.concurrency, self._stop.is_asked, self._worker.heartbeat.count(),
            self._tally.attempts, vitals.storage_age, vitals.transport_age,
        )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    @property
    def ends_in(self) -> float | None:
        """Seconds until a stopped worker must have ended; None before it is stopped."""
        return max(0.0, self._stop.ends_at - self._worker.clock.monotonic()) if self._stop.is_asked else None

    @property
    def is_ready(self) -> bool:
        """Whether it takes runs on: not while it stops, nor while storage or the transport has not answered for a while."""
        state = self.state
        ages = [state.storage_age, *([state.transport_age] if state.mode == "sqs" else [])]
        return self.is_running and not state.is_stopping and all(age is not None and age <= LONGEST_SILENCE for age in ages)

    def stop(self, grace: Duration | None = None) -> None:
        """Start nothing more. Attempts under way may end within the grace (default: the worker's), less a margin; then they are
        interrupted, and released if they notice. Returns at once; `wait` for the end. A shorter grace may be given later."""
        self._stop.ask(self.grace if grace is None else parse_duration(grace, "grace").total_seconds())

    def wait(self, timeout: float | None = None) -> bool:
        """Until the worker has ended, at most `timeout` seconds; whether it has. Raises what broke it."""
        ends_at = None if timeout is None else self._worker.clock.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if ends_at is None else max(0.0, ends_at - self._worker.clock.monotonic()))
        if self.is_running:
            return False
        self._worker.pool.close()
        self._tally.flush()
        if self._breakage is not None:
            raise self._breakage
        return True

    def give_back(self) -> int:
        """The process ends now: write what has ended and could not be written yet, hand back what has not started, and release what
        ignores the stop; the number of leases left."""
        self._stop.ask(0.0)
        held = self._worker.heartbeat.held
        last = Thread(target=self._settle_last, args=([self._last_of(attempt) for attempt in held], held), name="runlane-last", daemon=True)
        last.start()
        last.join(LAST_TRANSACTION)
        return self._worker.heartbeat.count()

    def _last_of(self, attempt: Attempt) -> Settlement:
        if attempt.settlement is not None:
            # Its own thread may be about to write it.
            return ended_as(self._worker, attempt)._replace(tried_before=True)
        end = NotStarted(ZERO, STOPPING) if attempt.ends_at is None else Released(RETRY_AFTER_EXIT, STOPPING, keeps_failures=True)
        return self._worker.pipeline.decide(attempt, end)

    def _settle_last(self, settlements: Sequence[Settlement], held: Sequence[Attempt]) -> None:
        report = self._worker.settler.settle(settlements)
        if not report.unsettled:
            self._worker.heartbeat.drop(held)

    def _run(self, part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as error:  # Whoever waits for the worker is told; a part of it cannot go on alone.
            self._breakage = self._breakage or error
            self._stop.ask(self.grace)

    def _pulse(self) -> None:
        """Contact with storage is known even while there is nothing to do."""
        while not self._stop.is_asked:
            with suppress(RunlaneError):
                self._worker.store.look(self._worker.settings.queues)
                self._vitals.note_storage()
            self._tally.flush()
            self._stop.wait(PULSE_SECONDS)
