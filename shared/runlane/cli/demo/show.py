"""The demo as people see it: live bars, then two tables and a checklist."""

from __future__ import annotations

from collections.abc import Iterator
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
        BarColumn(40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[running]:>3} running"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        yield Board(progress, {})


def report(found: Report) -> RenderableType:
    return Group(
        Text(),
        table(["queue", "#triggered", "#succeeded", "#failed", "#cancelled", "#retried", "#recovered", "#released", "#highest / limit"],
              map(_counts, found.queues)),
        table(["wait for the first attempt", "#noisy p50", "#noisy p99", "#quiet p50", "#quiet p99"], map(_waits, found.queues)),
        *map(_check, found.checks),
        Text(),
        Text(_verdict(found), style="bold green" if found.holds else "bold red"),
    )  # fmt: skip


def _counts(queue: QueueSummary) -> list[object]:
    held = f"{cell(queue.highest)} / {cell(queue.limit)}" if queue.limit is not None else "no limit"
    return [
        queue.queue, queue.triggered, queue.succeeded, queue.failed, queue.cancelled, queue.retried, queue.recovered, queue.released, held,
    ]  # fmt: skip


def _waits(queue: QueueSummary) -> list[object]:
    return [queue.queue, queue.noisy_p50, queue.noisy_p99, queue.quiet_p50, queue.quiet_p99]


def _check(check: Check) -> Text:
    if check.holds:
        return Text.assemble(("  ✓ ", "green"), check.text)
    return Text.assemble(("  ✗ ", "bold red"), check.text, *(f"\n      {cell(fault)}" for fault in check.faults))


def _verdict(found: Report) -> str:
    runs = sum(queue.triggered for queue in found.queues)
    times = f"{runs} runs in {found.play_seconds:.1f} s, {found.seconds:.1f} s with servers and workers starting"
    broken = sum(not check.holds for check in found.checks)
    return f"{times}: every promise kept" if found.holds else f"{times}: {broken} of {len(found.checks)} promises broken"
