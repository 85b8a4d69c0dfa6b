"""The reference says what the code says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.reference.__main__ import FOLDER, PAGES
from runlane.domain import errors

SOURCES = sorted((Path(__file__).parents[2] / "shared" / "runlane").rglob("*.py"))
RAISED = {name for name in dir(errors) if name.endswith("Error")} | {"Failure", "Fault"}


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_up_to_date(page: str) -> None:
    assert (FOLDER / page).read_text(encoding="utf-8") == PAGES[page](), "run `make docs`"


def test_every_error_code_is_explained() -> None:
    page = (FOLDER / "errors.md").read_text(encoding="utf-8")
    codes = {code for source in SOURCES for code in _codes(ast.parse(source.read_text(encoding="utf-8")))}

    assert {code for code in codes if f"`{code}`" not in page} == set()
    assert "payload_invalid" in codes


def _codes(module: ast.Module) -> Iterator[str]:
    """Codes that stand where an error is made, and constants that look like one."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in RAISED:
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            is_configuration = getattr(node.func, "id", "") == "ConfigurationError"
            yield from _texts(given if is_configuration else [*given, *node.args[:1]])
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "").endswith(
            ("_INVALID", "_TOO_LARGE", "_UNAVAILABLE", "_FAILED")
        ):
            yield from _texts([node.value])


def _texts(nodes: list[ast.expr]) -> Iterator[str]:
    yield from (
        node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()
    )
