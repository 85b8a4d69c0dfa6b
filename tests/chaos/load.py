"""Mixed runs by seed: every queue, retries, releases, delays, long ones, and some that are cancelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from runlane.domain.errors import ConflictError, UnavailableError
from runlane.runtime import Runlane
from runlane.services.trigger import Item
from tests.chaos.catalog import MAX_ATTEMPTS, TASKS, Job

CHUNK = 25
KEYS = 60
CANCELLED = 0.04


class Load:
    """`triggered`: the run ids that a trigger returned. `doomed`: of those, the ones that fail every attempt; `asked`: to stop."""

    def __init__(self, runlane: Runlane, random: Random) -> None:
        self._runlane = runlane
        self._random = random
        self._numbers = 0
        self.triggered: list[str] = []
        self.doomed: set[str] = set()
        self.asked: set[str] = set()
        self.to_cancel: list[str] = []
        self.refused = 0

    def trigger(self) -> bool:
        """A chunk of runs of one task in one transaction; False: storage is out of reach, and nothing was acknowledged."""
        items = [self._item() for _ in range(CHUNK)]
        try:
            results = self._runlane.trigger_many(self._random.choice(TASKS), items)
        except UnavailableError:
            self.refused += 1
            return False
        made = [result.run.run_id for result in results]
        self.triggered += made
        self.doomed.update(run_id for run_id, item in zip(made, items, strict=True) if item.payload.fails >= MAX_ATTEMPTS)
        self.to_cancel += [run_id for run_id in made if self._random.random() < CANCELLED]
        self.asked.update(self.to_cancel)
        return True

    def cancel(self) -> None:
        """Ask what was marked for it to stop, wherever it stands by now."""
        for run_id in _taken(self.to_cancel):
            try:
                self._runlane.runs.cancel(run_id, actor="chaos")
            except ConflictError:  # It has ended.
                pass
            except UnavailableError:
                self.to_cancel.append(run_id)
                return

    def _item(self) -> Item:
        draw = self._random.random
        job = Job(
            number=self._numbers,
            key=str(self._random.randrange(KEYS)),
            seconds=0.4 if draw() < 0.03 else draw() * 0.004,
            fails=MAX_ATTEMPTS if draw() < 0.01 else int(draw() < 0.08),
            releases=int(draw() < 0.05),
        )
        self._numbers += 1
        return Item(job, **({"delay": f"{self._random.randrange(1, 2500)}ms"} if draw() < 0.15 else {}))


def _taken(found: list[str]) -> Sequence[str]:
    taken = found[:]
    found.clear()
    return taken


def chunks(load: Load, runs: int) -> Iterator[bool]:
    while len(load.triggered) < runs:
        yield load.trigger()
