"""SQL by name, from the files in `queries/`, with the schema quoted into the text once."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_HEADER = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


@cache
def named_statements() -> dict[str, str]:
    """Every statement of `queries/*.sql`, the schema still a placeholder."""
    statements: dict[str, str] = {}
    for file in sorted(Path(__file__).with_name("queries").iterdir()):
        _, *pairs = _HEADER.split(file.read_text(encoding="utf-8"))
        for name, text in zip(pairs[::2], pairs[1::2], strict=True):
            if name in statements:
                raise ValueError(f"statement {name} stands twice in queries/")
            statements[name] = text.strip().rstrip(";")
    return statements


def quote_schema(schema: str) -> str:
    return '"' + schema.replace('"', '""') + '"'


def into_schema(text: str, schema: str) -> str:
    """The text with its placeholders filled: `{schema}` an identifier, `{literal}` a string."""
    return text.replace("{schema}", quote_schema(schema)).replace("{literal}", "'" + schema.replace("'", "''") + "'")


def statements_of(schema: str) -> dict[str, bytes]:
    """Every named statement as it is sent: in the schema, without the comments that are for its readers."""
    return {name: into_schema(_COMMENT.sub("", text), schema).encode() for name, text in named_statements().items()}
