"""Data made safe to show: a terminal must not obey what somebody put into a payload."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

# Control characters of both sets, line separators, direction overrides and half characters.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(value: object) -> str:
    """One line of text in which everything a terminal could obey is written out, as in `\\x1b`."""
    return _UNSAFE.sub(lambda found: found.group().encode("unicode_escape").decode(), str(value))


def command_line(words: Iterable[str]) -> str:
    """The words as a shell takes them; what a terminal could obey is written out in the shell's own `$'…'`."""
    return " ".join(map(_word, words))


def _word(word: str) -> str:
    if _UNSAFE.search(word) is None:
        return shlex.quote(word)
    return "$'" + clean(word.replace("\\", "\\\\").replace("'", "\\'")) + "'"
