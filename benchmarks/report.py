"""The tables, for the terminal and as docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table as RichTable

from benchmarks.figure import Row, Table

COLUMNS = ("", "measured", "compared with", "ratio", "bar", "")
INTRODUCTION = """# Benchmarks

Written by `make bench`: medians, with the lowest and the highest in brackets. A ratio is one of medians. Both sides ran in turn on the
same server, each in a database of its own, and the work was counted afterwards: every run succeeded exactly once by its events, every job
of the peer was handled once and logged as successful. Without a bar a line is only reported.
"""


def terminal_table(table: Table) -> RichTable:
    shown = RichTable(*COLUMNS, title=table.title)
    for row in table.rows:
        shown.add_row(*_cells(row), style=None if row.passed else "red")
    return shown


def markdown(tables: Sequence[Table], facts: Mapping[str, str]) -> str:
    parts = [INTRODUCTION, "\n".join(f"- {name}: {value}" for name, value in facts.items()) + "\n"]
    for table in tables:
        lines = [f"## {table.title}", "", table.notes.strip(), "", _line(COLUMNS), _line(("---",) * len(COLUMNS))]
        parts.append("\n".join([*lines, *(_line(_cells(row)) for row in table.rows)]) + "\n")
    return "\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(row: Row) -> tuple[str, ...]:
    base = "" if row.base is None else str(row.base)
    ratio = "" if row.base is None else f"{row.figure:.2f}"
    verdict = "" if not row.bar else "holds" if row.passed else "BROKEN"
    return row.what, str(row.value), base, ratio, row.bar, verdict
