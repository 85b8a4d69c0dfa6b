"""What commands answer: tables for people, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from runlane.cli.text import clean, command_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_WIDTH = 200
"""Columns where nobody's terminal sets a limit."""


def answer(value: Any, as_json: bool, show: Callable[[], RenderableType], then: Sequence[str] = ()) -> None:
    """Write `value` as JSON, or what `show` makes of it and `then`, the words of the command that comes next."""
    if as_json:
        write_json(value)
        return
    console().print(show())
    if then:
        suggest(console(), then)


def suggest(on: Console, words: Sequence[str], lead: str = "next") -> None:
    """Name a command, on one line however narrow the terminal is, so that it can be copied."""
    from rich.text import Text

    on.print(Text(f"{lead}: {command_line(words)}", style="dim"), soft_wrap=True)


def write_json(value: Any) -> None:
    """ASCII, so that nothing in it can act on a terminal; times as ISO 8601 in UTC, durations in seconds."""
    sys.stdout.write(json.dumps(plain(value), indent=2) + "\n")


def write_json_line(value: Any) -> None:
    """The same on one line, and out at once: one of several documents."""
    sys.stdout.write(json.dumps(plain(value)) + "\n")
    sys.stdout.flush()


def plain(value: Any) -> Any:
    """What `json` can write; fields of records keep their names and order."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value.total_seconds() if isinstance(value, timedelta) else value


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, markup=False)
    if not made.is_terminal:
        made.width = PIPE_WIDTH
    return made


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "nothing") -> RenderableType:
    """A table of cleaned cells; columns whose names begin with `#` hold numbers. The first stays whole on a narrow terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if column.startswith("#") else "left"
        made.add_column(column.removeprefix("#"), justify=justify, overflow="fold", no_wrap=place == 0)
    for row in rows:
        made.add_row(*(Text(cell(value)) for value in row))
    return made if made.row_count else Text(empty, style="dim")


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, timedelta):
        return span(value)
    return clean(json.dumps(plain(value), ensure_ascii=False) if isinstance(value, dict | list | tuple) else value)


def span(duration: timedelta) -> str:
    """About how long, in three digits at most."""
    seconds = duration.total_seconds()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f}".removesuffix(".0") + " s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
