"""Text that Postgres cannot store: what is wrong with it, and text cut to a number of UTF-8 bytes and made storable."""

from __future__ import annotations

ELLIPSIS = "…"
_ELLIPSIS_BYTES = len(ELLIPSIS.encode())


def unstorable(text: str) -> str | None:
    """Why Postgres cannot hold it as it is, with the remedy; None if it can."""
    if "\0" in text:
        return "contains NUL, which Postgres cannot store; remove it"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "contains a lone surrogate, which UTF-8 cannot encode; give valid Unicode"
    return None


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
    """The text with what Postgres or UTF-8 cannot hold replaced by U+FFFD, character by character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")
