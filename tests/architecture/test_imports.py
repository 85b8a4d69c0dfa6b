"""Who may import what: the contracts of pyproject.toml, and what an import contract cannot say."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]
PRODUCT = ROOT / "shared/runlane"
SOURCES = sorted((ROOT / "shared").rglob("*.py"))
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def imported(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_import_contracts_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(no_cache=True) == EXIT_STATUS_SUCCESS, capsys.readouterr().out


@pytest.mark.parametrize("source", sorted((PRODUCT / "domain").rglob("*.py")), ids=named)
def test_the_domain_is_standard_library_only(source: Path) -> None:
    foreign = {name for name in imported(source) if name.split(".")[0] not in sys.stdlib_module_names}
    assert all(name.startswith("runlane.domain") for name in foreign), foreign


@pytest.mark.parametrize("source", sorted(PRODUCT.rglob("*.py")), ids=named)
def test_the_product_imports_its_own_modules_not_its_public_face(source: Path) -> None:
    assert "runlane" not in set(imported(source)), "import the module that defines the name: the public face lies above every layer"


@pytest.mark.parametrize("handler", sorted((ROOT / "functions").rglob("*.py")), ids=named)
def test_a_handler_is_twenty_lines_at_most_and_imports_only_the_composition_root(handler: Path) -> None:
    assert len(handler.read_text().splitlines()) <= 20
    assert {name for name in imported(handler) if name.split(".")[0] == "runlane"} == {"runlane.bootstrap", "runlane.cold_start"}


@pytest.mark.parametrize("source", SOURCES, ids=named)
def test_only_settings_read_the_environment(source: Path) -> None:
    if source == PRODUCT / "settings.py":
        return
    reads = [
        node.lineno
        for node in ast.walk(ast.parse(source.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT and ast.unparse(node.value) == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and ENVIRONMENT & {alias.name for alias in node.names})
    ]
    assert not reads, f"{named(source)}: lines {reads} go past runlane.settings"
