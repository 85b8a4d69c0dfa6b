"""A figure's table, for the terminal and as a section of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table as RichTable

from benchmarks.figure import Row, Table

COLUMNS = ("", "measured", "compared with", "ratio", "bar", "")


def terminal_table(table: Table) -> RichTable:
    shown = RichTable(*COLUMNS, title=table.title)
    for row in table.rows:
        shown.add_row(*_cells(row), style=None if row.passed else "red")
    return shown


def section(table: Table, circumstances: str) -> str:
    """The table below its title, its notes, and when and where it was measured."""
    lines = [f"## {table.title}", "", table.notes.strip(), "", f"*{circumstances}*", "", _line(COLUMNS), _line(("---",) * len(COLUMNS))]
    return "\n".join([*lines, *(_line(_cells(row)) for row in table.rows)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(row: Row) -> tuple[str, ...]:
    base = "" if row.base is None else str(row.base)
    ratio = "" if row.base is None else f"{row.figure:.2f}"
    verdict = "" if not row.bar else "holds" if row.passed else "BROKEN"
    return row.what, str(row.value), base, ratio, row.bar, verdict
