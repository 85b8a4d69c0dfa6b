"""Text cut to a number of UTF-8 bytes and made storable: NUL and lone surrogates become U+FFFD."""

from __future__ import annotations

ELLIPSIS = "…"
_ELLIPSIS_BYTES = len(ELLIPSIS.encode())


def head(text: str, limit: int) -> str:
    """The beginning of the text in at most `limit` bytes; an ellipsis marks a cut. `limit` is at least 3."""
    # Cut before encoding: a character is at least one byte, and the text may be huge.
    encoded = storable(text[: limit + 1]).encode()
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - _ELLIPSIS_BYTES].decode(errors="ignore") + ELLIPSIS


def tail(text: str, limit: int) -> str:
    """The end of the text in at most `limit` bytes; an ellipsis marks a cut. `limit` is at least 3."""
    encoded = storable(text[-limit - 1 :]).encode()
    if len(encoded) <= limit:
        return encoded.decode()
    return ELLIPSIS + encoded[_ELLIPSIS_BYTES - limit :].decode(errors="ignore")


def storable(text: str) -> str:
    """The text with what Postgres or UTF-8 cannot hold replaced, character by character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")
