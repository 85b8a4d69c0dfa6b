"""The environment variables, from the one place that reads them."""

from __future__ import annotations

from typing import cast

import griffe

from runlane.settings import Settings, variable_of

HEAD = """# Settings

What a process is told by its environment. An empty variable counts as not set. All that is wrong is said at once, each by its variable.

| variable | default | meaning |
|---|---|---|
"""


def settings() -> str:
    documented = cast(griffe.Class, griffe.load("runlane", search_paths=["shared"])["settings.Settings"])
    return HEAD + "".join(_row(field, documented[field]) for field in Settings.model_fields)


def _row(field: str, documented: griffe.Object | griffe.Alias) -> str:
    default = Settings.model_fields[field].default
    shown = f"`{default}`" if isinstance(default, str | int) and not isinstance(default, bool) else ""
    meaning = documented.docstring.value if documented.docstring else ""
    return f"| `{variable_of(field)}` | {shown} | {' '.join(meaning.split())} |\n"
