"""The demo as people see it: live bars, then two tables and a checklist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from runlane.adapters.postgres.audit import RunCounts
from runlane.cli.demo.report import Check, QueueSummary, Report
from runlane.cli.output import cell, table


@dataclass(slots=True)
class Board:
    """One bar a queue: ended runs of those triggered, and how many run now."""

    progress: Progress
    bars: dict[str, TaskID]

    def tell(self, text: str) -> None:
        self.progress.console.print(Text(f"  {text}"))

    def update(self, counts: tuple[RunCounts, ...]) -> None:
        for queue in counts:
            if queue.queue not in self.bars:
                self.bars[queue.queue] = self.progress.add_task(queue.queue, total=None, running=0)
            self.progress.update(self.bars[queue.queue], completed=queue.ended, total=queue.recorded or None, running=queue.running)


@contextmanager
def board(console: Console) -> Iterator[Board]:
    columns = (
        TextColumn("  {task.description:<13}"),
        BarColumn(30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[running]:>3} running"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        yield Board(progress, {})


NEXT = "next: `make dev` runs shared/app the same way; docs/guide.md begins there"


def report(found: Report) -> RenderableType:
    facts = table(["", *(f"#{queue.queue}" for queue in found.queues)], ([name, *map(show, found.queues)] for name, show in FACTS.items()))
    verdict = Text(_verdict(found), style="bold green" if found.holds else "bold red")
    return Group(Text(), facts, *map(_check, found.checks), Text(), verdict, Text(NEXT, style="dim"))


def _slots(queue: QueueSummary) -> str:
    return "no limit" if queue.limit is None else f"{cell(queue.highest)} of {queue.limit}"


FACTS: dict[str, Callable[[QueueSummary], object]] = {
    "triggered": lambda queue: queue.triggered,
    "succeeded": lambda queue: queue.succeeded,
    "failed for good": lambda queue: queue.failed,
    "cancelled": lambda queue: queue.cancelled,
    "retried": lambda queue: queue.retried,
    "recovered": lambda queue: queue.recovered,
    "released": lambda queue: queue.released,
    "most slots held at once": _slots,
    "wait of the noisy customer, p50": lambda queue: queue.noisy_p50,
    "wait of the noisy customer, p99": lambda queue: queue.noisy_p99,
    "wait of all others, p50": lambda queue: queue.quiet_p50,
    "wait of all others, p99": lambda queue: queue.quiet_p99,
}


def _check(check: Check) -> Text:
    if check.holds:
        return Text.assemble(("  ✓ ", "green"), check.text)
    return Text.assemble(("  ✗ ", "bold red"), check.text, *(f"\n      {cell(fault)}" for fault in check.faults))


def _verdict(found: Report) -> str:
    runs = sum(queue.triggered for queue in found.queues)
    times = f"{runs} runs in {found.play_seconds:.1f} s, {found.seconds:.1f} s with servers and workers starting"
    broken = sum(not check.holds for check in found.checks)
    return f"{times}: every promise kept" if found.holds else f"{times}: {broken} of {len(found.checks)} promises broken"
