"""What somebody who gave an unknown name most likely meant."""

from __future__ import annotations

from collections.abc import Iterable

from runlane.domain.ids import MAX_LENGTH


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'main'?` when one of `known` is near, else nothing: the end of a message."""
    from difflib import get_close_matches  # Only what is wrong needs it, so no start pays for it.

    close = get_close_matches(name[:MAX_LENGTH], tuple(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
