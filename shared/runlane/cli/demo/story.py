"""What happens in the demo, act by act, while the workers work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from runlane.adapters.postgres.audit import PostgresAudit, RunCounts
from runlane.cli.demo.plan import WAVE, Plan, Wave
from runlane.cli.demo.stage import Stage
from runlane.domain.errors import ConflictError
from runlane.domain.run import TriggerOutcome
from runlane.runtime import Runlane

LOOK_EVERY = 0.1
MID_ATTEMPT = timedelta(seconds=0.15)
"""Most runs take a few milliseconds: one that has been held for this long is one of the slow ones, and is in the middle of it."""
TIMEOUT = 90.0

Tell = Callable[[str], None]
Watch = Callable[[tuple[RunCounts, ...]], None]


@dataclass(slots=True)
class Facts:
    """What only the story knows."""

    triggered: int = 0
    duplicates: int = 0
    cancelled: list[str] = field(default_factory=list)
    lost_leases: int = 0
    """What the killed worker held."""


class Story:
    def __init__(self, runlane: Runlane, audit: PostgresAudit, stage: Stage, plan: Plan, tell: Tell, watch: Watch) -> None:
        self.facts = Facts()
        self._runlane = runlane
        self._audit = audit
        self._stage = stage
        self._plan = plan
        self._tell = tell
        self._watch = watch
        self._endless = ""
        self._open = 0

    def play(self) -> Facts:
        """Until every run has ended; `ConflictError` `demo_timeout` if that takes more than 90 s."""
        ends_at = time.monotonic() + TIMEOUT
        acts: list[Iterator[None]] = [self._trigger(), self._cancel(), self._kill()]
        while self._goes_on(acts):
            if time.monotonic() > ends_at:
                raise ConflictError("demo_timeout", f"the demo's runs have not ended within {TIMEOUT:.0f} s; is the machine very busy?")
        return self.facts

    def _goes_on(self, acts: list[Iterator[None]]) -> bool:
        """A moment of every act that is not over; whether something is left to do."""
        acts[:] = [act for act in acts if next(act, "over") is None]
        counts = self._audit.run_counts()
        self._watch(counts)
        self._open = sum(queue.recorded - queue.ended for queue in counts)
        if acts or self._open:
            time.sleep(LOOK_EVERY)
        return bool(acts or self._open)

    def _trigger(self) -> Iterator[None]:
        """The noisy customer's backlog first; then the others', about as fast as they are served."""
        first, *others = self._plan.waves
        results = self._send(first)
        self._endless = results[0]
        self._tell(f"one customer triggers {len(first.items)} runs at once")
        self._runlane.runs.cancel(results[-1], actor="demo", reason="cancelled while it waits")
        self.facts.cancelled.append(results[-1])
        for wave in others:
            while self._open > len(first.items) + WAVE:
                yield
            self._open += len(self._send(wave))
        self._tell(f"{self.facts.triggered} runs triggered; {self.facts.duplicates} repeated triggers made none")

    def _send(self, wave: Wave) -> list[str]:
        results = self._runlane.trigger_many(wave.task, wave.items, actor="demo")
        made = [result.run.run_id for result in results if result.outcome is TriggerOutcome.CREATED]
        self.facts.triggered += len(made)
        self.facts.duplicates += len(results) - len(made)
        return [result.run.run_id for result in results]

    def _cancel(self) -> Iterator[None]:
        """A run that would go on for ever is asked to stop."""
        while not any(holder.run_id == self._endless for holder in self._audit.holders()):
            yield
        self._runlane.runs.cancel(self._endless, actor="demo", reason="cancelled while it runs")
        self.facts.cancelled.append(self._endless)
        self._tell("a running run and a waiting one are cancelled")

    def _kill(self) -> Iterator[None]:
        while (victim := self._victim()) is None:
            yield
        self._stage.kill_worker(_pid(victim))
        self.facts.lost_leases = sum(holder.worker == victim for holder in self._audit.holders())
        self._stage.start_worker()
        self._tell(f"a worker is killed with SIGKILL in the middle of {self.facts.lost_leases} attempts; another takes its place")

    def _victim(self) -> str | None:
        """The worker with the oldest lease on a slow run."""
        for holder in self._audit.holders():
            if holder.held_for >= MID_ATTEMPT and holder.run_id != self._endless and _pid(holder.worker) in self._stage.pids:
                return holder.worker
        return None


def _pid(worker: str) -> int:
    """From a worker's name: host, pid and a random part."""
    return int(worker.rsplit("-", 2)[1])
