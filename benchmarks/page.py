"""docs/benchmarks.md: a section a figure, each replaced by itself, so that a page can come from several runs and say so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from benchmarks.processes import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
MARK = "<!-- figure: {} -->\n"
MARKED = re.compile(r"^<!-- figure: (\w+) -->\n", re.MULTILINE)
INTRODUCTION = """# Benchmarks

Written by `make bench`, a section a figure: medians, with the lowest and the highest in brackets. A ratio is one of medians. What is
compared ran in turn on the same server, each side in a database of its own, and the work was counted afterwards: every run succeeded
exactly once by its events, every job of a peer was handled once. Without a bar a line is only reported. BROKEN is a bar that was missed.

Each section says when it was measured, and under which load: `make bench only="cpu_per_run trigger"` measures some of them anew and
leaves the others as they are. The peers' environments are made by themselves, with pinned versions; one whose Python is not here is named
in its table. `python -m benchmarks.hour` is a section of its own.

CI runs the short form, `make gate`: statements, round trips, buffers, bytes of WAL and transaction ids of a run, triggered and worked off
in several ways, may not grow by a tenth over the figures in `benchmarks/gate/kept.json`; they are the same in every run. CPU, as a multiple
of a raw `SKIP LOCKED` queue's in the same minute, is not: it is measured up to three times, and fails when the mean of all ways has grown
by a fifth, or one of them by six tenths.
"""


def merged(page: str, sections: Mapping[str, str], order: Sequence[str]) -> str:
    """`page` with the sections given in place of its own; what `order` does not name is left out."""
    kept = {**sections_of(page), **sections}
    parts = [MARK.format(name) + kept[name].rstrip("\n") + "\n" for name in order if name in kept]
    return "\n".join([INTRODUCTION, *parts])


def sections_of(page: str) -> dict[str, str]:
    """The text of each section by its figure's name, without the mark."""
    _, *found = MARKED.split(page)
    return dict(zip(found[::2], found[1::2], strict=True))


def write_section(name: str, text: str, order: Sequence[str]) -> None:
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    PAGE.write_text(merged(page, {name: text}, order), encoding="utf-8")
