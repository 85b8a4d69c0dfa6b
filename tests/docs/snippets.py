"""A page's snippets, as it shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"<!-- (?P<remark>runlane dev|clean machine|not run: \S.*?) -->\n\Z")
_FILE = re.compile(r"(?:#|//|--) (?P<path>[\w./-]+\.\w+)(?P<more>, continued)?\n")
_COMMAND = re.compile(r"\$ ")

SCRIPT, FILE, MORE_OF_FILE, SHELL, DIALOGUE = "script", "file", "more of a file", "shell", "dialogue"
SQL, OUTPUT, SHOWN = "sql", "output", "shown"
DEV, CLEAN = "runlane dev", "clean machine"
_KINDS = {"python": SCRIPT, "sh": SHELL, "console": DIALOGUE, "sql": SQL, "text": OUTPUT}


@dataclass(frozen=True)
class Snippet:
    """`file`: the path that its first line names. `line`: where it begins in the page."""

    kind: str
    text: str
    line: int
    language: str = ""
    file: str = ""
    not_run: str = ""

    def exchanges(self) -> Iterator[tuple[str, str]]:
        """Each command of a dialogue with the output that the page states; lines that end with a backslash go on."""
        for part in re.split(r"^(?=\$ )", self.text, flags=re.MULTILINE):
            if _COMMAND.match(part):
                command = re.match(r"\$ ((?:.*\\\n)*.*)\n?", part)
                assert command is not None
                yield command.group(1), part[command.end() :]


def read(page: Path) -> tuple[Snippet, ...]:
    """Snippets and remarks in order, hidden ones (in HTML comments) included."""
    return tuple(_read(page.read_text(encoding="utf-8")))


def _read(text: str) -> Iterator[Snippet]:
    last = 0
    for found in _BLOCK.finditer(text):
        before, last = text[last : found.start()], found.end()
        line = text.count("\n", 0, found.start()) + 1
        for word in re.findall(r"^<!-- (runlane dev|clean machine) -->$", before, re.MULTILINE):
            yield Snippet(word, "", line)
        remark = _REMARK.search(before)
        not_run = remark["remark"].removeprefix("not run: ") if remark and remark["remark"].startswith("not run: ") else ""
        yield _snippet(found["language"], found["text"], line, not_run)


def _snippet(language: str, text: str, line: int, not_run: str) -> Snippet:
    if named := _FILE.match(text):
        return Snippet(MORE_OF_FILE if named["more"] else FILE, text, line, language, named["path"], not_run)
    return Snippet(_KINDS.get(language, SHOWN), text, line, language, "", not_run)
