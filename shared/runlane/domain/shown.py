"""Values as an error's message shows them."""

from __future__ import annotations

LONGEST = 80
"""Characters: an error is read by people and kept in logs, and what was given may be a megabyte."""


def shown(value: object) -> str:
    """Its `repr`, cut to 80 characters; one line, whatever is in it. Of what has none, only the type."""
    try:
        # A text is cut before it is written out, which may take ten times its size.
        text = repr(value[: LONGEST + 1] if isinstance(value, str) else value)
    except Exception:  # Python writes out no number of more than 4,300 digits, and a `__repr__` is anybody's code.
        text = f"something of type {type(value).__name__}"
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}…"
