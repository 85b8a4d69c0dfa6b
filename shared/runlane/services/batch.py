"""One delivery from claim to last settlement: attempts run elsewhere, its thread claims, watches the time and settles.

Where runs go one at a time, the thread that ran the lone attempt settles it and takes the next: two switches between threads
cost more than a quick attempt. `_turn` is held by whichever thread claims or settles, so they never do it side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from threading import Lock, Thread

from runlane.domain.durations import ZERO
from runlane.domain.ids import RunId
from runlane.domain.outcome import NotStarted, OutcomeKind, Settlement
from runlane.ports.stores import ClaimBatch, ClaimedRun, Refusal, Wakeup
from runlane.services.attempt import Attempt
from runlane.services.budget import TimeBudget
from runlane.services.early import LONGEST, LONGEST_THROTTLED, EarlyWakeups
from runlane.services.finished import FinishedAttempts
from runlane.services.intake import Intake, NoIntake
from runlane.services.message_groups import MessageGroups
from runlane.services.overtime import Overtime, settle_stray
from runlane.services.recovery import recover
from runlane.services.settle import NextClaim
from runlane.services.watch import Watch
from runlane.services.worker import Worker

UNKNOWN_DELAY = timedelta(seconds=30)
LONGEST_HINT = timedelta(minutes=15)
LAST_MOMENT = 0.1
"""Seconds for threads to hand over attempts that have ended."""

Delivered = Callable[[Collection[RunId]], None]
"""Told of runs whose wakeups have done what they came for, as soon as they have; must not raise."""


class Batch:
    """`queues_by_run` names the runs of all wakeups; those in `groups` start as their groups permit, the others at once.

    `intake` keeps the delivery going beyond its wakeups, for as long as it is open.
    """

    def __init__(
        self,
        worker: Worker,
        budget: TimeBudget,
        queues_by_run: dict[RunId, str],
        *,
        groups: MessageGroups | None = None,
        intake: Intake | None = None,
        delivered: Delivered | None = None,
    ) -> None:
        self.budget = budget
        self.failed: set[RunId] = set()
        """Runs whose wakeups met trouble with the infrastructure."""
        self._worker = worker
        self._queues_by_run = queues_by_run
        self._groups = groups or MessageGroups()
        self._open: dict[RunId, Attempt] = {}
        self._finished = FinishedAttempts()
        self._early = EarlyWakeups(worker.early)
        self._intake = intake or NoIntake()
        self._delivered = delivered
        self._watch = Watch(worker, budget, self._open, self._finished, self._early, self._intake)
        self._overtime = Overtime(worker, budget, self._open)
        self._is_closing = False
        self._turn = Lock()
        self._unpublished: list[Wakeup] = []
        self._breakage: BaseException | None = None

    def run(self) -> None:
        """Deliver the wakeups, and go on with what follows from them while time remains."""
        try:
            with self.budget.waking(self.look):
                self._run()
        except BaseException:  # Whoever waited is interrupted, the attempts are not.
            self._leave_all()
            self._early.let_go()
            raise

    def _run(self) -> None:
        with self._turn:
            self._wake([run_id for run_id in self._queues_by_run if run_id not in self._groups.run_ids])
            self._claim_in_groups()
            is_done = self._end_turn()
        while not is_done:
            self._watch.wait()
            with self._turn:
                is_done = self._go_on()

    def look(self) -> None:
        """Called from any thread: there may be something to take in, or less time than before."""
        self._finished.call()

    def finish(self, attempt: Attempt) -> None:
        """Called by the thread that ran it."""
        if self._finished.open_count == 1 and not attempt.task.is_async and self._turn.acquire(blocking=False):
            is_alone = list(self._open) == [attempt.claim.run_id]
            if is_alone:
                self._settle_alone(attempt)
            self._turn.release()
            if is_alone:
                return
        if not self._finished.add(attempt):
            Thread(target=settle_stray, args=(self._worker, attempt), name="runlane-stray", daemon=True).start()

    def _go_on(self) -> bool:
        """Do what the wait was for; True when the delivery is over."""
        if self._breakage is not None:
            raise self._breakage
        self._settle(self._finished.take())
        self._claim_early()
        is_left = self._watch_time()
        return self._end_turn() or is_left

    def _end_turn(self) -> bool:
        """Take in what there is room for, and publish; True when nothing is left to wait for."""
        self._take_in()
        self._publish()
        return not (self._open or self._early or self._intake.is_open)

    def _settle_alone(self, attempt: Attempt) -> None:
        """Settle the only open attempt on its own thread, which takes up what is claimed with it when this has returned."""
        try:
            self._settle([attempt])
        except BaseException as error:  # Not this thread's to report: the delivery fails with it.
            self._breakage = error
        if self._breakage is not None or self._unpublished or len(self._open) != 1 or self._watch.sleeps_too_long():
            self._finished.call()

    # Claiming

    def _wake(self, run_ids: Sequence[RunId]) -> None:
        """Claim what may start here; what is kept in order elsewhere, and came by the timers queue, is dispatched to there."""
        ordered = self._worker.settings.ordered_queues
        elsewhere = [run_id for run_id in run_ids if self._queues_by_run.get(run_id) in ordered] if ordered else []
        if elsewhere:
            self._ask(elsewhere, lambda: self._worker.store.forward_runs(elsewhere))
        if here := [run_id for run_id in run_ids if run_id not in elsewhere]:
            self._claim(here)

    def _claim_in_groups(self) -> None:
        """Claim what is next of each message group, until each that goes on has an attempt under way."""
        while self._groups:
            if self._worker.pool.is_clogged or not self.budget.fits(None, self._worker.clock.monotonic()):
                self._groups.close()
            if not (run_ids := self._groups.next()):
                return
            self._claim(run_ids, own_only=True)
            for run_id in run_ids:
                if run_id not in self._open:
                    self._groups.end(run_id)

    def _claim(self, run_ids: Sequence[RunId], *, own_only: bool = False) -> None:
        settings, store = self._worker.settings, self._worker.store
        self._ask(run_ids, lambda: store.claim_runs(run_ids, lease_for=settings.lease_for, worker=settings.name, own_only=own_only))

    def _ask(self, run_ids: Sequence[RunId], ask: Callable[[], ClaimBatch]) -> None:
        # Read before the claim: leases are at least as fresh as it says.
        claimed_at = self._worker.clock.monotonic()
        try:
            batch = ask()
        except Exception as error:  # The border around a record: it fails, comes again, and its run is safe in storage.
            self._fail(run_ids)
            self._worker.telemetry.emit("claim.failed", count=len(run_ids), error=repr(error))
        else:
            self._accept(batch, claimed_at)
            self._tell_delivered([run_id for run_id in run_ids if run_id not in self._open and not self._early.holds(run_id)])

    def _take_in(self) -> None:
        now, room = self._worker.clock.monotonic(), self._worker.room
        if not self._intake.is_open:
            return
        if room <= 0:
            self._unpublished += self._intake.tend(now)
        elif self._intake.next_at <= now and self._may_go_on(now):
            self._accept(self._intake.take(room), now)

    def _fail(self, run_ids: Iterable[RunId]) -> None:
        for run_id in run_ids:
            self.failed.add(run_id)
            self._groups.give_back(run_id)

    def _claim_early(self) -> None:
        if self._early and (due := self._early.pop_due(self._worker.clock.monotonic())):
            self._wake(due)

    def _accept(self, batch: ClaimBatch, claimed_at: float) -> None:
        tasks, holds = self._worker.tasks, self._worker.heartbeat.holds
        self._start(batch.claims, claimed_at)
        settlements: list[Settlement] = []
        for lease in batch.expired:
            if holds(lease.run_id):
                self._groups.give_back(lease.run_id)
            else:
                settlements.append(recover(lease, tasks))
        settlements += [_not_known(run) for run in batch.claims if run.task not in tasks]
        hints = self._refused(batch.refusals)
        self._unpublished += [*batch.wakeups, *hints]
        for wakeup in batch.wakeups:
            # Of a record under way: somebody held its dispatch row for a moment. The new wakeup stands behind its group; this one does not.
            self._groups.give_back(wakeup.run_id)
        self._fail(self._worker.settler.settle(settlements).unsettled)

    def _start(self, claims: Sequence[ClaimedRun], claimed_at: float) -> None:
        tasks, clock = self._worker.tasks, self._worker.clock
        attempts = [Attempt(run, tasks[run.task], self, clock, claimed_at) for run in claims if run.task in tasks]
        if not attempts:
            return
        self._open.update((attempt.claim.run_id, attempt) for attempt in attempts)
        self._finished.open_count = len(self._open)
        self._worker.heartbeat.hold(attempts)
        self._worker.publisher.forget(claims)
        self._worker.pool.submit(attempts)
        self._watch.has_news = True

    def _refused(self, refusals: Sequence[Refusal]) -> list[Wakeup]:
        """Hold what may start in a moment; give wakeups that came too early another delay."""
        if not refusals:
            return []
        now = self._worker.clock.monotonic()
        hints: list[Wakeup] = []
        for refusal in refusals:
            in_order = refusal.run_id in self._groups.run_ids
            if in_order and refusal.reason == "leased":
                # Its attempt goes on elsewhere, or its lease has yet to expire: what stands behind it must not overtake it.
                self._groups.give_back(refusal.run_id)
            if refusal.due_in is None:
                continue
            longest = LONGEST_THROTTLED if refusal.reason == "throttled" else LONGEST
            if not in_order and refusal.due_in <= longest and self.budget.fits(None, now + refusal.due_in.total_seconds()):
                self._early.hold(refusal.run_id, refusal.due_in, now)
            elif refusal.due_in <= LONGEST_HINT and refusal.run_id in self._queues_by_run:
                hints.append(Wakeup(refusal.run_id, self._queues_by_run[refusal.run_id], delay=refusal.due_in, hint=True))
        self._worker.telemetry.emit("claim.refused", reasons=Counter(refusal.reason for refusal in refusals))
        return hints

    # Settling

    def _settle(self, attempts: Sequence[Attempt]) -> None:
        """Write what has ended, give the freed capacity on, and go on with the oldest dispatch rows in the same transaction."""
        if not attempts:
            return
        # Going on after a hand-back would take the same run again, as it is the oldest.
        self._is_closing = self._is_closing or (not self._intake.is_open and any(_is_handed_back(attempt) for attempt in attempts))
        began_at = self._worker.clock.monotonic()
        settlements = [attempt.settlement for attempt in attempts if attempt.settlement is not None]
        then = self._next_claim(len(attempts), began_at)
        report = self._worker.settler.write(settlements, then, self._keep_time)
        self._fail(report.unsettled)
        self._forget(attempts)
        if report.claimed is not None:
            self._accept(report.claimed, began_at)
        if then is not None and (report.claimed is None or len(report.claimed.claims) < then.limit):
            self._intake.rest(began_at)
        self._unpublished += report.wakeups
        self._tell_delivered([attempt.claim.run_id for attempt in attempts])
        self._claim_in_groups()

    def _publish(self) -> None:
        wakeups, self._unpublished = self._unpublished, []
        self._worker.publisher.publish(wakeups)

    def _next_claim(self, freed: int, now: float) -> NextClaim | None:
        settings = self._worker.settings
        room = self._worker.room + freed
        may_continue = now < self.budget.started_at + settings.continue_inline_for and not self._groups.run_ids
        if room <= 0 or not may_continue or not self._may_go_on(now):
            return None
        return NextClaim(settings.queues, room, settings.lease_for, settings.name)

    def _may_go_on(self, now: float) -> bool:
        return (
            not self._is_closing
            and self.budget.fits(None, now)
            and (self._intake.is_open or not any(attempt.interrupted for attempt in self._open.values()))
            and not self._worker.pool.is_clogged
            and not self._worker.heartbeat.is_failing
        )

    def _tell_delivered(self, run_ids: Collection[RunId]) -> None:
        """Of the wakeups' runs that have ended or will not start, and whose records need not come again."""
        if self._delivered is not None:
            kept = self.failed | self._groups.returned_runs
            self._delivered([run_id for run_id in run_ids if run_id in self._queues_by_run and run_id not in kept])

    def _forget(self, attempts: Sequence[Attempt]) -> None:
        self._worker.heartbeat.drop(attempts)
        for attempt in attempts:
            self._open.pop(attempt.claim.run_id, None)
            if _is_not_started(attempt):
                self._groups.give_back(attempt.claim.run_id)
            self._groups.end(attempt.claim.run_id)
        self._finished.open_count = len(self._open)

    # Deadlines

    def _watch_time(self) -> bool:
        """Interrupt what is overdue, hand back what can no longer start; True when there is nothing left to wait for."""
        if not self._open:
            return False
        now = self._worker.clock.monotonic()
        self._keep_leases(now)
        self._overtime.interrupt(now)
        if self._intake.is_open:
            # What hangs must not keep the others from going on.
            if hung := self._overtime.hung(now, alone=True):
                self._leave_to_themselves(hung)
            if self._worker.pool.is_clogged:
                self._hand_back()
            return False
        hung = self._overtime.hung(now)
        if now >= self.budget.end or self.budget.is_stopping or self._worker.pool.is_clogged or hung:
            self._hand_back()
        # Whatever else is still open or held is waited for first.
        return len(hung) == len(self._open) > 0 and not self._early and self._leave(hung)

    def _keep_time(self) -> None:
        """While storage is out of reach: the attempts still under way have deadlines all the same."""
        now = self._worker.clock.monotonic()
        self._keep_leases(now)
        self._overtime.interrupt(now)

    def _keep_leases(self, now: float) -> None:
        oldest = next(iter(self._open.values()))
        if now - oldest.claimed_at >= self._worker.heartbeat.interval:
            self._worker.heartbeat.ensure_beating()

    def _hand_back(self) -> None:
        self._settle(self._withdraw())

    def _withdraw(self) -> list[Attempt]:
        self._groups.close()
        waiting = self._worker.pool.withdraw(self)
        for attempt in waiting:
            self._worker.pipeline.conclude(attempt, NotStarted(ZERO, "out_of_time"))
        return waiting

    def _leave(self, hung: Sequence[Attempt]) -> bool:
        if self._worker.exit_process is not None:
            self._overtime.settle_last(hung)
            self._worker.exit_process()
            return True
        return self._leave_to_themselves(hung)

    def _leave_all(self) -> None:
        """What has ended is settled, what has not begun is handed back, and the rest is settled by the threads that run it."""
        with self._turn:
            self._is_closing = True
            waiting = self._withdraw()
            if under_way := [attempt for attempt in self._open.values() if attempt not in waiting]:
                self._leave_to_themselves(under_way)
            self._finished.wait_for_all(LAST_MOMENT)
            self._settle([*self._finished.take(), *waiting])
            self._publish()

    def _leave_to_themselves(self, hung: Sequence[Attempt]) -> bool:
        """They keep leases and slots until their threads end; True if none has ended after all."""
        strays = [attempt for attempt in hung if self._finished.abandon(attempt)]
        self._worker.pool.count_strays(len(strays))
        for attempt in strays:
            del self._open[attempt.claim.run_id]
            self._groups.give_back(attempt.claim.run_id)
        self._finished.open_count = len(self._open)
        if strays:
            # Nobody looks at them any more, so nobody else would see that their leases need it.
            self._worker.heartbeat.ensure_beating()
        self._worker.telemetry.emit("attempt.strayed", run_ids=[attempt.claim.run_id for attempt in strays])
        return not self._open


def _not_known(run: ClaimedRun) -> Settlement:
    """An older deployment knows no such task; a newer worker will."""
    return Settlement(run.run_id, run.token, OutcomeKind.HANDED_BACK, delay=UNKNOWN_DELAY, reason="task_unknown", attempt=run.attempt)


def _is_handed_back(attempt: Attempt) -> bool:
    return attempt.settlement is not None and attempt.settlement.kind is OutcomeKind.HANDED_BACK


def _is_not_started(attempt: Attempt) -> bool:
    """Handed back for want of time, to start as soon as somebody has some."""
    return _is_handed_back(attempt) and attempt.settlement is not None and not attempt.settlement.delay
