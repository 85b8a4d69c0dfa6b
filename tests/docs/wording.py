"""Whether a command said what its page states."""

from __future__ import annotations

import re

_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_KINDS = {
    "id": _ID,
    "time": r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)",
    "span": r"\b\d+(?:\.\d+)? (?:ms|s|min|h|d)\b",
    "rest": "…",
    "rule": "[─━]+",
    "space": r"[ \t]+",
}
_TOKEN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _KINDS.items()))
_ANY_LINES = r"(?:.*\n)*?"
_ANY = {"rest": ".*?", "rule": "[─━]+", "space": r"[ \t]+"}


class Ids:
    """Which run a page means by an id that it shows: the one that was printed where the page shows it first."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def real(self, text: str) -> str:
        """A command or a script of the page with the real ids in it."""
        return re.sub(_ID, lambda found: self._real.get(found.group(), found.group()), text)

    def fits(self, stated: str, said: str) -> bool:
        """Whether the output is the stated one; from then on its ids are known."""
        pattern, names = self._pattern(stated)
        found = re.fullmatch(pattern, _tidy(said) + "\n")
        if found is None:
            return False
        self._real.update({shown: found[name] for shown, name in names.items()})
        return True

    def _pattern(self, stated: str) -> tuple[str, dict[str, str]]:
        names: dict[str, str] = {}
        lines = _tidy(stated).split("\n")
        ends_open = lines[-1] == "…"
        parts = [_ANY_LINES if line == "…" else self._line(line, names) + "\n" for line in lines[: len(lines) - ends_open]]
        return "".join(parts) + (r"[\s\S]*" if ends_open else ""), names

    def _line(self, line: str, names: dict[str, str]) -> str:
        pattern, last = "", 0
        for token in _TOKEN.finditer(line):
            pattern += re.escape(line[last : token.start()]) + self._token(token, names)
            last = token.end()
        return pattern + re.escape(line[last:])

    def _token(self, token: re.Match[str], names: dict[str, str]) -> str:
        kind = token.lastgroup or ""
        if kind != "id":
            return _ANY.get(kind) or _KINDS[kind]
        shown = token.group()
        if shown in self._real:
            return re.escape(self._real[shown])
        if shown in names:
            return f"(?P={names[shown]})"
        names[shown] = f"id{len(names)}"
        return f"(?P<{names[shown]}>{_ID})"


def _tidy(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().split("\n") if line.strip())
