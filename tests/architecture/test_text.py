"""What must not stand in a file of the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "shared").rglob("*.py"))
IGNORES = re.compile(r"#\s*(type:\s*ignore|noqa|mypy:|ruff:|pyright:)")
# Spelled so that the patterns do not find themselves.
PLACES = re.compile(r"/(root|tmp)[/]|/(home|Users)[/]\w|[.]py[p]i[.]|py[p]i[.]org|python[h]osted|registry[.]np[m]")


def tracked() -> list[Path]:
    """Files that are in git or about to be; an export without git has nothing to compare."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return sorted(ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("source", SOURCES, ids=named)
def test_no_checker_is_silenced_in_shared(source: Path) -> None:
    silenced = [number for number, line in enumerate(source.read_text().splitlines(), 1) if IGNORES.search(line)]
    assert not silenced, f"{named(source)}: lines {silenced}"


def test_no_file_names_a_machine_path_or_a_package_registry() -> None:
    found = [
        f"{named(path)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if PLACES.search(line)
    ]
    assert not found, "\n".join(found)
