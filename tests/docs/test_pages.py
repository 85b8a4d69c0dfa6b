"""What the pages say is so: every snippet of README.md and docs/ is run, in order, each page in a folder and a database of its own.

A page is written for its reader; what the tests need to know stands in how a block looks:

* ```` ```python ```` runs; all such blocks of a page share their names, as in one script. If the first line is a comment with a path
  (`# shop/tasks.py`), the block is that file of the reader's folder; `# shop/tasks.py, continued` adds to its end. Files may be in any
  language (`# pyproject.toml` in a `toml` block).
* ```` ```console ```` holds `$ command` lines with the output that follows each, which is compared. A run id, a time, a length of time
  (`12 ms`) and the width of columns may differ; `…` stands for anything in a line, a line with nothing but `…` for any lines. An id that a
  page shows stands for the one that was printed in that place: later commands and scripts get the real one. `runlane dev` and
  `runlane worker`, but in mode drain, go on running beside the page once they have said what is stated; they are ended as by Ctrl-C after
  the page, or at once where the stated output ends with a line `^C`. `export NAME=value` holds for the rest of the page.
* ```` ```sh ```` holds commands that must succeed, ```` ```sql ```` statements that must; ```` ```text ```` states what the snippet before
  it printed. Blocks in other languages are shown only.
* Remarks in comments on a line of their own, not shown. `<!-- runlane dev -->`: from here on the folder's application is served
  (migrated, a worker, a tick each second), as if the reader had `runlane dev` running; once more, and it is started anew.
  `<!-- clean machine -->`: from here on no variable names a database or a queue. `<!-- not run: why -->` above a block: it cannot be
  run here. A whole block may stand in a comment: it is run and not shown; assertions about what the page says belong there.

Without an application of its own, a page talks about the one of the repository, `shared/app/`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.conftest import Problems
from tests.docs.snippets import SHELL, SHOWN, read

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


FIRST_READ = ("README.md", "tutorial.md", "guide.md")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUN = [
    pytest.param(page, id=_name(page), marks=[] if page.name in FIRST_READ else [pytest.mark.thorough])
    for page in PAGES
    if any(snippet.kind != SHOWN for snippet in read(page))
]


@pytest.mark.parametrize("page", RUN)
def test_what_a_page_says_is_so(page: Path, problems: Problems) -> None:
    if problem := problems(page):
        pytest.fail(problem, pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_make_target_of_a_page_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for snippet in read(page):
        for target in re.findall(r"^(?:\$ )?make (\w+)", snippet.text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
        assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE), f"{file}::{name}"


def test_the_readme_names_the_test_command_that_ci_runs() -> None:
    assert "make test" in next(snippet.text for snippet in read(ROOT / "README.md") if snippet.kind == SHELL)
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
