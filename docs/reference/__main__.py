"""`make docs`: write the pages of this folder anew, from docstrings, settings and the command line itself. errors.md is written by hand."""

from __future__ import annotations

from pathlib import Path

from docs.reference.command_line import command_line
from docs.reference.names import python
from docs.reference.variables import settings

FOLDER = Path(__file__).parent
PAGES = {"python.md": python, "command-line.md": command_line, "settings.md": settings}

if __name__ == "__main__":
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")
