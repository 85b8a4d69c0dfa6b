"""A page that lies is found out: the tests of the tests of the pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.conftest import Follow
from tests.docs.snippets import FILE, SCRIPT, read
from tests.docs.wording import Ids

FIRST, SECOND = "01999999-0000-7000-8000-000000000001", "01999999-0000-7000-8000-000000000002"
LIES = {
    "script": "```python\nraise LookupError('so')\n```\n",
    "command": "```sh\nfalse\n```\n",
    "output": "```console\n$ echo so\nnot so\n```\n",
    "print": "```python\nprint('so')\n```\n\n```text\nnot so\n```\n",
    "statement": "```sql\nSELECT nothing\n```\n",
}
TRUE = """
```python
# shop/words.py
WORD = "so"
```

It is `words.WORD`:

```python
from shop.words import WORD

print(WORD)
```

```text
so
```

<!--
```python
assert WORD == "so"
```
-->

```console
$ echo not \\
  so
not so
$ python -c 'from shop.words import WORD; print(WORD)'
so
```
"""


def _page(folder: Path, text: str) -> Path:
    page = folder / f"{folder.name.strip('0123456789')}.md"
    page.write_text(text, encoding="utf-8")
    return page


@pytest.mark.parametrize("kind", LIES)
def test_a_lie_is_found_out(kind: str, follow_page: Follow, tmp_path: Path) -> None:
    assert re.search(r"\.md:[15]: ", follow_page(_page(tmp_path, LIES[kind])))


def test_a_true_page_passes(follow_page: Follow, tmp_path: Path) -> None:
    assert follow_page(_page(tmp_path, TRUE)) == ""


def test_a_block_above_which_it_says_so_is_not_run(tmp_path: Path) -> None:
    page = _page(tmp_path, "<!-- not run: why -->\n```python\n1\n```\n\n```python\n2\n```\n\n```python\n# a/b.py\n```\n")

    assert [(one.kind, one.not_run) for one in read(page)] == [(SCRIPT, "why"), (SCRIPT, ""), (FILE, "")]


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ("took 12 ms", "took 1.5 s"),
        ("at 2026-11-30 18:12:29Z", "at 2027-01-01 00:00:00Z"),
        ("run      status", "run status"),
        ("──", "───────"),
        ("a … c", "a b c"),
        ("a\n…\nd", "a\nb\nc\nd"),
        ("a\n…\nd", "a\nd"),
        ("a\n…", "a\nb\nc"),
        ("", ""),
    ],
)
def test_what_may_differ_differs(stated: str, said: str) -> None:
    assert Ids().fits(stated, said)


@pytest.mark.parametrize(
    ("stated", "said"),
    [("took 12 ms", "took long"), ("a … c", "a b\nc"), ("a", "a\nb"), ("a\n…", "b\na"), ("", "a"), ("a", ""), ("1 attempt", "2 attempt")],
)
def test_what_must_be_said_must_be_said(stated: str, said: str) -> None:
    assert not Ids().fits(stated, said)


def test_an_id_stands_for_the_one_that_was_printed() -> None:
    ids = Ids()

    assert ids.fits(f"{FIRST} created", f"{SECOND} created")
    assert ids.real(f"runlane runs show {FIRST}") == f"runlane runs show {SECOND}"
    assert not ids.fits(f"{FIRST} again", f"{FIRST} again")
