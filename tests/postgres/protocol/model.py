"""The protocol as a small model: what each statement makes of one partition, and what breaks in between.

Whoever does something is a process with nothing in its memory but what it has read: a worker that owns a lease, one that froze and holds a
token of the past, one that has read an expired lease and is about to recover it, a publisher whose mark comes late. Processes have no
names, as they are all alike; so a partition with its processes is a value, and two partitions in either order are the same state.

Where a run stands is the statement's guard; what becomes of it is `runlane.domain.run.transition` and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from runlane.domain.run import Status, Verb, transition


class Bug(StrEnum):
    """Faults that a protocol like this one is prone to, each of which the model can be given."""

    NO_FENCING = "results are taken from whoever brings them"
    SLOT_FREED_TWICE = "the cancel of a dispatched run frees its slot, and so does the claim that finds it gone"
    CANCELLED_GETS_SLOT = "a slot is handed over to a run that has been cancelled"
    RECOVERY_WITHOUT_TOKEN = "recovery ends an expired lease that is not the one it has read"
    RECOVERY_BEFORE_EXPIRY = "recovery does not look again whether the lease has expired"
    MARK_OF_ANOTHER = "a mark speaks of whichever wakeup the run has now"
    SLOT_KEPT = "the end of an attempt frees its slot, and gives it to nobody"
    LIMIT_UNCHECKED = "a due timer is dispatched whether there is a slot or not"
    WAKEUP_FORGOTTEN = "what is dispatched in place of an ended run has no wakeup"
    NO_EXPIRY_OF_DISPATCHES = "a dispatch whose wakeup was lost waits for ever"
    CANCEL_UNDONE = "a run that was asked to stop is tried again like any other"


class Place(StrEnum):
    ABSENT = "absent"
    TIMER = "timer"
    WAITING = "waiting"
    DISPATCH = "dispatch"
    LEASE = "lease"
    OUTCOME = "outcome"


class Publication(StrEnum):
    """Of a dispatch row, together with where its wakeup really is. A timer's hint has only SENT and LOST."""

    NONE = "none"
    HELD = "claimed: a process is about to send it"
    ORPHAN = "claimed: and whoever was to send it is gone, or the wakeup is"
    SENT = "claimed: on its way"
    MARKED = "published: on its way"
    LOST = "published: and lost"
    FAILED = "failed: the transport refused it"
    NEVER_SENT = "published: and never sent"


class Kind(StrEnum):
    """Who may be relied upon to do it."""

    WORK = "work"
    """Done sooner or later by whoever is well: what brings runs to their ends."""
    CHOICE = "choice"
    """A caller's, an operator's or a handler's decision, which may come or not."""
    TICK = "tick"
    """Maintenance's, or time's own."""
    FAULT = "fault"


class Run(NamedTuple):
    """`owned`: a worker executes it under the token that is stored. `stale`: workers that hold a token of the past. `readers`: processes
    that have read the expired lease and will recover it; `mistaken`: those whose lease is gone, by whether they would end the run."""

    place: Place = Place.ABSENT
    status: Status | None = None
    failures: int = 0
    publication: Publication = Publication.NONE
    owned: bool = False
    expired: bool = False
    stale: int = 0
    readers: int = 0
    mistaken: tuple[int, int] = (0, 0)
    late: int = 0
    """Marks of earlier wakeups that a slow publisher still holds."""
    name: int = 0
    """Which run it is, for those who replay; 0: nobody asks."""

    @property
    def processes(self) -> int:
        return self.owned + self.stale + self.readers + sum(self.mistaken)


class Partition(NamedTuple):
    """`occupied` is what is counted, to be compared with what is there. The runs that can wait stand in the order of their due times."""

    runs: tuple[Run, ...]
    occupied: int = 0

    @property
    def slots(self) -> int:
        return sum(run.place in (Place.DISPATCH, Place.LEASE) for run in self.runs)

    @property
    def processes(self) -> int:
        return sum(run.processes for run in self.runs)

    @property
    def mistaken(self) -> int:
        return sum(run.processes - run.owned for run in self.runs)

    @property
    def late(self) -> int:
        return sum(run.late for run in self.runs)

    @property
    def has_ended(self) -> bool:
        return all(run.place is Place.OUTCOME for run in self.runs)


class Rules(NamedTuple):
    """`total_limit`: of the queue, over all its partitions."""

    concurrency_limit: int | None = 1
    total_limit: int | None = None
    max_attempts: int = 2
    workers: int = 3
    most_mistaken: int = 3
    """Processes at once that go by what they have read of a lease, and do not own it."""
    late_marks: int = 0
    publishes: bool = False
    """Whether publishers, their marks and their deaths are modelled; else what is dispatched has its wakeup on its way at once."""
    bug: Bug | None = None


class Step(NamedTuple):
    """What a statement, a process or an accident made of a partition. `grants`: the statement gives free slots away before it commits."""

    action: str
    run: Run
    kind: Kind
    after: Partition
    grants: bool = False
    broken: str | None = None


class ForbiddenError(Exception):
    """A statement did what the transition table forbids, or broke a promise."""


_ORDERED = (Place.WAITING, Place.DISPATCH, Place.LEASE)
_ON_ITS_WAY = (Publication.SENT, Publication.MARKED)
_UNMARKED = (Publication.HELD, Publication.SENT)


def become(run: Run, verb: Verb) -> Status:
    to = transition(run.status, verb) if run.status is not None else None
    if to is None:
        raise ForbiddenError(f"the table forbids to {verb} a run that is {run.status}")
    return to


MODELLED = frozenset({
    Verb.CLAIM, Verb.SUCCEED, Verb.FAIL, Verb.RETRY, Verb.RELEASE, Verb.CANCEL, Verb.RECOVER_RETRY, Verb.RECOVER_FAIL, Verb.HAND_BACK
})  # fmt: skip


def _like() -> dict[Status, Status]:
    """For each status the first of its class to which the table permits the same."""
    found: dict[Status, Status] = {}
    rows: dict[tuple[object, ...], Status] = {}
    for status in Status:
        row = (status.is_waiting, status.is_active, *(transition(status, verb) for verb in sorted(MODELLED)))
        found[status] = rows.setdefault(row, status)
    return found


LIKE = _like()


def alike(partition: Partition) -> Partition:
    """Without what makes no difference to anything that can happen: which of two statuses it is that the table treats alike, and whether
    a wakeup was refused or got lost before it was marked."""
    return tidy(partition._replace(runs=tuple(map(_alike, partition.runs))))


def _alike(run: Run) -> Run:
    status = run.status and LIKE[run.status]
    return run._replace(status=status, publication=Publication.ORPHAN if run.publication is Publication.FAILED else run.publication)


def tidy(partition: Partition) -> Partition:
    """The one form of all partitions that differ in names only: beyond the order of due times there is none."""
    ordered = [run for run in partition.runs if run.place in _ORDERED]
    return partition._replace(runs=(*ordered, *sorted(run for run in partition.runs if run.place not in _ORDERED)))


def first_publication(rules: Rules) -> Publication:
    return Publication.HELD if rules.publishes else Publication.SENT


def grant(partition: Partition, rules: Rules) -> Partition | None:
    """A free slot goes to the run that has waited longest; None: no slot is free, or nobody waits."""
    if rules.concurrency_limit is not None and partition.occupied >= rules.concurrency_limit:
        return None
    for at, run in enumerate(partition.runs):
        if run.place is Place.WAITING:
            wakeup = Publication.ORPHAN if rules.bug is Bug.WAKEUP_FORGOTTEN else first_publication(rules)
            given = run._replace(place=Place.DISPATCH, publication=wakeup)
            return partition._replace(occupied=partition.occupied + 1, runs=_put(partition.runs, at, given))
    return None


def broken(partition: Partition, rules: Rules) -> str | None:
    """Which promise about a partition is broken, if one is."""
    if partition.occupied != partition.slots:
        return f"slots are conserved: {partition.occupied} counted, {partition.slots} held"
    if rules.concurrency_limit is not None and partition.slots > rules.concurrency_limit:
        return "a limit is a limit"
    for run in partition.runs:
        if run.failures > rules.max_attempts or (run.place is Place.LEASE and run.failures >= rules.max_attempts):
            return "attempts never exceed their maximum"
        if run.publication is Publication.NEVER_SENT:
            return "what is marked as published has been sent"
        if run.status is not None and _stands_wrong(run, run.status):
            return f"a run that is {run.status} does not stand in {run.place}"
    return None


def _stands_wrong(run: Run, status: Status) -> bool:
    if run.place is Place.OUTCOME:
        return not status.is_terminal
    return not (status.is_active if run.place is Place.LEASE else status.is_waiting)


def steps(partition: Partition, rules: Rules) -> Iterator[Step]:
    """Everything that can happen next in this partition; whether a process is free for it is for the caller to see."""
    for at, run in enumerate(partition.runs):
        yield from _Acts(partition, at, run, rules).steps()


def _put(runs: tuple[Run, ...], at: int, run: Run) -> tuple[Run, ...]:
    return (*runs[:at], run, *runs[at + 1 :])


def _last(runs: tuple[Run, ...], at: int, run: Run) -> tuple[Run, ...]:
    """Due later than all that wait."""
    return (*runs[:at], *runs[at + 1 :], run)


class _Acts:
    """What can happen to one run of a partition."""

    def __init__(self, partition: Partition, at: int, run: Run, rules: Rules) -> None:
        self.partition = partition
        self.at = at
        self.run = run
        self.rules = rules

    def steps(self) -> Iterator[Step]:
        match self.run.place:
            case Place.ABSENT:
                yield from self._triggered()
            case Place.TIMER:
                yield from self._timed()
            case Place.DISPATCH:
                yield from self._dispatched()
            case Place.LEASE:
                yield from self._leased()
        yield from self._cancelled()
        yield from self._out_of_date()

    # Before it runs.

    def _triggered(self) -> Iterator[Step]:
        yield self._step("trigger", Kind.WORK, self.run._replace(place=Place.WAITING, status=Status.QUEUED), last=True, grants=True)
        later = self.run._replace(place=Place.TIMER, status=Status.SCHEDULED, publication=Publication.SENT)
        yield self._step("trigger_later", Kind.CHOICE, later)

    def _timed(self) -> Iterator[Step]:
        # Time alone makes it queued, and no verb.
        status = Status.QUEUED if self.run.status is Status.SCHEDULED else self.run.status
        due = self.run._replace(place=Place.WAITING, status=status, publication=Publication.NONE)
        if self.rules.bug is Bug.LIMIT_UNCHECKED:
            due = due._replace(place=Place.DISPATCH, publication=first_publication(self.rules))
            yield self._step("due_by_tick", Kind.TICK, due, last=True, occupied=1)
            return
        yield self._step("due_by_tick", Kind.TICK, due, last=True, grants=True)
        if self.run.publication is Publication.SENT:
            yield self._step("due_by_hint", Kind.WORK, due, last=True, grants=True)
            yield self._step("lose_hint", Kind.FAULT, self.run._replace(publication=Publication.LOST))

    def _dispatched(self) -> Iterator[Step]:
        run = self.run
        # A doubled or late wakeup does what its run's own does.
        claim = "claim" if run.publication in _ON_ITS_WAY else "claim_stray"
        for left in self._leaving():
            leased = left._replace(place=Place.LEASE, status=become(run, Verb.CLAIM), owned=True)
            yield self._step(claim, Kind.WORK if claim == "claim" else Kind.FAULT, leased)
        yield from self._published()
        if self.rules.bug is not Bug.NO_EXPIRY_OF_DISPATCHES:
            for left in self._leaving():
                yield self._step("expire_dispatch", Kind.TICK, left._replace(place=Place.WAITING), occupied=-1, grants=True)

    def _published(self) -> Iterator[Step]:
        run = self.run
        match run.publication:
            case Publication.HELD:
                yield self._step("send", Kind.WORK, run._replace(publication=Publication.SENT))
                yield self._step("refuse_to_send", Kind.FAULT, run._replace(publication=Publication.FAILED))
                yield self._step("publisher_dies", Kind.FAULT, run._replace(publication=Publication.ORPHAN))
            case Publication.SENT:
                if self.rules.publishes:
                    yield self._step("mark", Kind.CHOICE, run._replace(publication=Publication.MARKED))
                yield self._step("lose_wakeup", Kind.FAULT, run._replace(publication=Publication.ORPHAN))
            case Publication.MARKED:
                yield self._step("lose_wakeup", Kind.FAULT, run._replace(publication=Publication.LOST))
        if run.publication in (Publication.FAILED, Publication.ORPHAN, *_UNMARKED):
            for left in self._leaving():
                yield self._step("publish_again", Kind.TICK, left._replace(publication=first_publication(self.rules)))

    def _leaving(self) -> Iterator[Run]:
        """The dispatch row goes, or is published anew; whoever sent its wakeup, and has not marked it, may do so later."""
        left = self.run._replace(publication=Publication.NONE)
        yield left
        if self.run.publication is Publication.SENT and self.partition.late < self.rules.late_marks:
            yield left._replace(late=left.late + 1)

    # Under a lease.

    def _leased(self) -> Iterator[Step]:
        run = self.run
        if run.owned:
            yield from self._settled("")
            yield self._step("worker_dies", Kind.FAULT, run._replace(owned=False))
            yield self._step("heartbeat", Kind.CHOICE, run._replace(expired=False))
        if run.expired:
            yield self._step("read_expired", Kind.TICK, run._replace(readers=run.readers + 1))
        else:
            yield self._step("lease_expires", Kind.TICK, run._replace(expired=True))
        if run.readers:
            yield from self._recovered("recover", run._replace(readers=run.readers - 1), self._would_end)

    def _settled(self, whose: str) -> Iterator[Step]:
        """Every way in which an attempt ends, by the worker that holds the token; with `whose`, by another one."""
        run = self.run if whose else self.run._replace(owned=False)
        yield from self._ended(f"{whose}succeed", run, Verb.SUCCEED, Kind.WORK)
        yield from self._ended(f"{whose}fail", run, Verb.FAIL, Kind.CHOICE)
        if not self._would_end:
            yield from self._goes_on(f"{whose}retry", run, Verb.RETRY, failures=run.failures + 1)
            yield from self._goes_on(f"{whose}retry_at_once", run, Verb.RETRY, failures=run.failures + 1, at_once=True)
        yield from self._goes_on(f"{whose}release", run, Verb.RELEASE, failures=0)
        yield from self._goes_on(f"{whose}hand_back", run, Verb.HAND_BACK, failures=run.failures, in_place=True)

    @property
    def _would_end(self) -> bool:
        return self.run.failures + 1 >= self.rules.max_attempts

    def _recovered(self, action: str, read: Run, final: bool) -> Iterator[Step]:
        if not self.run.expired and self.rules.bug is not Bug.RECOVERY_BEFORE_EXPIRY:
            yield self._step("find_alive", Kind.WORK, read)
        elif final:
            yield from self._ended(action, read, Verb.RECOVER_FAIL, Kind.TICK)
        else:
            yield from self._goes_on(action, read, Verb.RECOVER_RETRY, failures=read.failures + 1, kind=Kind.TICK)

    def _ended(self, action: str, run: Run, verb: Verb, kind: Kind) -> Iterator[Step]:
        gives = self.rules.bug is not Bug.SLOT_KEPT
        done = self._without_lease(run, Place.OUTCOME, become(run, verb))
        yield self._step(action, kind, done, occupied=-1, grants=gives)
        if verb in (Verb.SUCCEED, Verb.FAIL) and self.run.status is Status.RUNNING and self.rules.total_limit is None:
            yield from self._handed_over(f"{action}_and_hand_over", kind, done)

    def _handed_over(self, action: str, kind: Kind, done: Run) -> Iterator[Step]:
        """The slot of an attempt that has ended goes to the partition's next run, and its lease to the same worker at once."""
        if self.partition.occupied != self.rules.concurrency_limit:
            return
        runs = _put(self.partition.runs, self.at, done)
        for at, heir in enumerate(runs):
            is_cancelled = heir.status is Status.CANCELLED and self.rules.bug is Bug.CANCELLED_GETS_SLOT
            if heir.place is Place.WAITING or is_cancelled:
                try:
                    leased = heir._replace(place=Place.LEASE, status=become(heir, Verb.CLAIM), owned=True)
                except ForbiddenError as error:
                    yield Step(action, self.run, kind, self.partition, broken=str(error))
                    return
                yield Step(action, self.run, kind, tidy(self.partition._replace(runs=_put(runs, at, leased))))
                return

    def _goes_on(
        self, action: str, run: Run, verb: Verb, *, failures: int, at_once: bool = False, in_place: bool = False, kind: Kind = Kind.CHOICE
    ) -> Iterator[Step]:
        becomes = become(run, verb)
        if self.rules.bug is Bug.CANCEL_UNDONE and verb is Verb.RETRY:
            becomes = Status.RETRYING
        if becomes.is_terminal:
            yield self._step(action, kind, self._without_lease(run, Place.OUTCOME, becomes), occupied=-1, grants=True)
            return
        if at_once or in_place:
            left = self._without_lease(run, Place.WAITING, becomes, failures)
            yield self._step(action, kind, left, occupied=-1, grants=True, last=at_once)
            return
        left = self._without_lease(run, Place.TIMER, becomes, failures)._replace(publication=Publication.SENT)
        yield self._step(action, kind, left, occupied=-1, grants=True)

    def _without_lease(self, run: Run, place: Place, status: Status, failures: int = 0) -> Run:
        """Whoever still believes in the lease is mistaken from now on."""
        goes_on, ends = run.mistaken
        mistaken = (goes_on, ends + run.readers) if self._would_end else (goes_on + run.readers, ends)
        return run._replace(
            place=place,
            status=status,
            failures=failures,
            owned=False,
            expired=False,
            stale=run.stale + run.owned,
            readers=0,
            mistaken=mistaken,
        )

    # From outside, and from the past.

    def _cancelled(self) -> Iterator[Step]:
        run = self.run
        if run.status is None or transition(run.status, Verb.CANCEL) is None:
            return
        becomes = become(run, Verb.CANCEL)
        if run.place is Place.LEASE:
            yield self._step("cancel", Kind.CHOICE, run._replace(status=becomes))
            return
        is_dispatched = run.place is Place.DISPATCH
        freed = 0 if not is_dispatched else -2 if self.rules.bug is Bug.SLOT_FREED_TWICE else -1
        for left in self._leaving() if is_dispatched else [run._replace(publication=Publication.NONE)]:
            ended = left._replace(place=Place.OUTCOME, status=becomes, failures=0)
            yield self._step("cancel", Kind.CHOICE, ended, occupied=freed, grants=is_dispatched)

    def _out_of_date(self) -> Iterator[Step]:
        """Wakeups, results, recoveries and marks of another time; they must change nothing."""
        run = self.run
        if run.place not in (Place.ABSENT, Place.DISPATCH) and not run.expired:
            yield self._step("stray_wakeup", Kind.FAULT, run)
        if run.stale:
            woken = run._replace(stale=run.stale - 1)
            if self.rules.bug is Bug.NO_FENCING and run.place is Place.LEASE:
                yield from _Acts(self.partition, self.at, woken, self.rules)._settled("frozen_worker_")
            else:
                yield self._step("frozen_worker_settles", Kind.WORK, woken)
                yield self._step("frozen_worker_heartbeats", Kind.WORK, woken)
        yield from self._mistaken()
        if run.late:
            yield self._step("mark_late", Kind.FAULT, self._marked_late(run._replace(late=run.late - 1)))

    def _mistaken(self) -> Iterator[Step]:
        goes_on, ends = self.run.mistaken
        for final, found in ((False, goes_on), (True, ends)):
            if not found:
                continue
            woken = self.run._replace(mistaken=(goes_on - (not final), ends - final))
            if self.rules.bug is Bug.RECOVERY_WITHOUT_TOKEN and self.run.place is Place.LEASE:
                yield from _Acts(self.partition, self.at, woken, self.rules)._recovered("recover_another", woken, final)
            else:
                yield self._step("recover_too_late", Kind.WORK, woken)

    def _marked_late(self, run: Run) -> Run:
        if self.rules.bug is not Bug.MARK_OF_ANOTHER or run.place is not Place.DISPATCH:
            return run
        sent = run.publication is Publication.SENT
        return run._replace(publication=Publication.MARKED if sent else Publication.NEVER_SENT)

    def _step(self, action: str, kind: Kind, run: Run, *, occupied: int = 0, grants: bool = False, last: bool = False) -> Step:
        place = _last if last else _put
        after = tidy(Partition(place(self.partition.runs, self.at, run), self.partition.occupied + occupied))
        return Step(action, self.run, kind, after, grants, self._broken_by(action, run))

    def _broken_by(self, action: str, run: Run) -> str | None:
        """What no state shows, but the way to it does."""
        before = self.run
        if before.place is Place.OUTCOME and (run.place, run.status) != (before.place, before.status):
            return "an end is final"
        if before.place is Place.LEASE and run.place is not Place.LEASE:
            by_owner = before.owned and not action.startswith(("recover", "frozen"))
            if not by_owner and not before.expired:
                return "a lease that has not expired is ended by its owner alone"
        if (
            before.status is Status.CANCELLATION_REQUESTED
            and run.status is not before.status
            and not (run.status and run.status.is_terminal)
        ):
            return "a run that is asked to stop never waits again"
        return None
