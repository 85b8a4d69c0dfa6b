"""The rivals' virtual environment, made when it is first needed and again when its pins change."""

from __future__ import annotations

import subprocess
import sys
import venv
from hashlib import sha256
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FOLDER = Path(__file__).parents[2] / ".venv" / "peers"


def peer_python() -> str:
    """The interpreter that has the pinned peers; installs them when need be."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / "installed"
    wanted = sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(FOLDER, with_pip=True, clear=True)
        install = [
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "-r",
            str(REQUIREMENTS),
        ]
        subprocess.run([str(python), *install], check=True)
        stamp.write_text(wanted)
    return str(python)


def peer_version(name: str) -> str:
    """What the environment has installed of `name`."""
    ask = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run([peer_python(), "-c", ask], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


if __name__ == "__main__":
    sys.exit(print(peer_python()))
