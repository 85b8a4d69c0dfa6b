"""The peers' virtual environments: made when they are first needed, and again when their pins change."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path

PINS = Path(__file__).with_name("pins")
FOLDER = Path(__file__).parents[2] / ".venv-bench"
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--require-hashes", "--requirement")
MINORS = ("3.11", "3.12", "3.13", "3.14")
TELL = "import sys, ensurepip; print(sys.executable)"


class NoPython(RuntimeError):
    """No Python here that the peer runs on."""


@cache
def peer_python(peer: str, least: str) -> str:
    """The interpreter that has the pinned `peer`; installs it when need be. Raises NoPython."""
    pins, folder = PINS / f"{peer}.txt", FOLDER / peer
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = sha256(pins.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([_find_python(least), "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), *PIP, str(pins)], check=True)
        stamp.write_text(wanted)
    return str(python)


@cache
def peer_version(peer: str, least: str) -> str:
    """What the environment has installed."""
    ask = f"import importlib.metadata as m; print(m.version({peer!r}))"
    return subprocess.run([peer_python(peer, least), "-c", ask], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def _find_python(least: str) -> str:
    """The first from `least` upwards that runs; a version manager's shim wants to be told which."""
    for minor in MINORS[MINORS.index(least) :]:
        try:
            told = subprocess.run(
                [f"python{minor}", "-c", TELL], env={**os.environ, "PYENV_VERSION": minor}, capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return told.stdout.strip()
    raise NoPython(f"no Python from {least} on is here")
