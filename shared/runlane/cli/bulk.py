"""One move on all runs that a filter finds: asked about, watched, and gone on with after an interruption."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from runlane.cli import INTERRUPTED
from runlane.cli.interruption import stopping_between_steps
from runlane.cli.output import answer, console, counted
from runlane.cli.text import clean, command_line
from runlane.domain.errors import ContractError, RunlaneError

if TYPE_CHECKING:
    from runlane.services.operate.bulk import BulkReport

PREVIEW = 1000
"""The most runs that are counted before the question."""
SHOWN = 10
HARMLESS = frozenset({"already_ended"})
"""Refusals that leave a run as it was wished."""


class Stopped(Exception):
    """Somebody asked to stop, and everything up to `report` is done."""

    def __init__(self, report: BulkReport) -> None:
        super().__init__(report)
        self.report = report


@dataclass(frozen=True, slots=True)
class Bulk:
    """`move(dry_run=…, limit=…, cursor=…, on_progress=…)`; `words`: the command line that means the same whenever it is run."""

    move: Callable[..., BulkReport]
    words: tuple[str, ...]
    verb: str
    done: str
    limit: int | None = None
    cursor: str | None = None
    is_paged: bool = True
    """Goes on after a cursor, and `limit` counts the runs that matched; else by being run again, and `limit` counts the runs moved."""

    def command(self, cursor: str | None, *extra: str, limit: int | None) -> list[str]:
        given = {"--limit": limit, "--cursor": cursor}
        return [*self.words, *(word for option, value in given.items() if value is not None for word in (option, str(value))), *extra]

    def left(self, report: BulkReport) -> int | None:
        """How many of `limit` are still to go; None: there is no limit."""
        return None if self.limit is None else self.limit - (report.matched if self.is_paged else report.done)


def carry_out(bulk: Bulk, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Move them and answer; exit code 1 if some were refused, 130 after an interruption."""
    total = None if yes or dry_run else _confirmed(bulk)
    try:
        report, is_stopped = _moved(bulk, total, dry_run=dry_run), False
    except Stopped as stopped:
        report, is_stopped = stopped.report, True
    if dry_run:
        then = bulk.command(bulk.cursor, limit=bulk.limit) if report.done else []
    elif is_stopped or report.next_cursor:
        # The rest of this page, or the next one.
        limit = bulk.left(report) if is_stopped else bulk.limit
        then = bulk.command(report.next_cursor, *(["--yes"] if yes else []), limit=limit)
    else:
        then = []
    answer(_document(report, then, dry_run=dry_run), as_json, lambda: _text(bulk, report, dry_run=dry_run), then)
    if is_stopped:
        raise typer.Exit(INTERRUPTED)
    if not dry_run and any(code not in HARMLESS for _, code in report.refused):
        raise typer.Exit(1)


def _confirmed(bulk: Bulk) -> int | None:
    """How many runs match, if that is known; who is asked and says no leaves."""
    found = bulk.move(dry_run=True, limit=min(bulk.limit or PREVIEW, PREVIEW), cursor=bulk.cursor, on_progress=None)
    is_all = found.matched < PREVIEW or bulk.limit == PREVIEW
    many = counted(found.matched, "run") if is_all else f"{found.matched} runs or more"
    if found.matched and not sys.stdin.isatty():
        raise ContractError("confirmation_missing", f"{many} to {bulk.verb}, and nobody to ask; give --yes, or --dry-run to only count")
    if found.matched and not _is_agreed(f"{many} to {bulk.verb}. Go on?"):
        raise typer.Abort
    return found.matched if is_all else None


def _is_agreed(question: str) -> bool:
    """Asked on the standard error; the library's own question leaves a trace in the answer."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _moved(bulk: Bulk, total: int | None, *, dry_run: bool) -> BulkReport:
    with stopping_between_steps() as is_stopping, _bar(bulk, total) as advance:
        cursor, left = bulk.cursor, bulk.limit

        def look(report: BulkReport) -> None:
            nonlocal cursor, left
            cursor, left = report.next_cursor, bulk.left(report)
            advance(report.matched)
            is_last = left == 0 or (bulk.is_paged and cursor is None)
            if is_stopping() and not is_last:
                raise Stopped(report)

        try:
            return bulk.move(dry_run=dry_run, limit=bulk.limit, cursor=bulk.cursor, on_progress=look)
        except RunlaneError as error:
            if not isinstance(error, ContractError):
                error.meta["next"] = command_line(bulk.command(cursor, limit=left))
            raise


@contextmanager
def _bar(bulk: Bulk, total: int | None) -> Iterator[Callable[[int], None]]:
    """On a terminal, beside the answer."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda matched: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(bulk.verb, total=total)
        yield lambda matched: progress.update(task, completed=matched)


def _document(report: BulkReport, then: Sequence[str], *, dry_run: bool) -> dict[str, Any]:
    return {
        "data": [],
        "matched": report.matched,
        "done": report.done,
        "refused": [{"run_id": run_id, "code": code, "message": None} for run_id, code in report.refused],
        "next_cursor": report.next_cursor,
        "next": command_line(then) or None,
        "dry_run": dry_run,
    }


def _text(bulk: Bulk, report: BulkReport, *, dry_run: bool) -> Any:
    from rich.text import Text

    first = f"{counted(report.done, 'run')} {'would be ' if dry_run else ''}{bulk.done}"
    if report.matched > report.done:
        codes = Counter(code for _, code in report.refused)
        first += f" of {report.matched}; {', '.join(f'{count} {clean(code)}' for code, count in codes.items()) or 'the others are kept'}"
    return Text("\n".join([first, *(f"  {run_id}  {clean(code)}" for run_id, code in report.refused[:SHOWN])]))
