"""What `sam deploy` ships, made by the layers' own recipes, and what Lambda brings beside it: folders to run the functions from.

The dependencies are made for this machine's processor, from the pins that are shipped for arm64. Those, and what Lambda brings, are kept in
.aws-sam/here until a pin or a recipe changes.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".aws-sam" / "here"
DEPENDENCIES = ROOT / "layers" / "dependencies"
RUNTIME = ROOT / "layers" / "runtime"
BROUGHT = ROOT / "requirements-lambda.txt"
SHIPPED = "aarch64"


class NotHere(RuntimeError):
    """The functions' own Python is not on PATH."""


@cache
def lambda_python() -> str:
    """The path of python3.13. `NotHere` if there is none; a version manager's shim that does not run is none."""
    try:
        asked = subprocess.run(["python3.13", "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise NotHere("python3.13 is needed on PATH, as for `make build`") from None
    return asked.stdout.strip()


@dataclass(frozen=True, slots=True)
class Artifact:
    """code: the functions' folder. dependencies, runtime: the layers, as they are unpacked to /opt. brought: what Lambda's Python has."""

    python: str
    code: Path
    dependencies: Path
    runtime: Path
    brought: Path

    @property
    def layers(self) -> tuple[Path, Path]:
        return self.dependencies, self.runtime

    def without_bytecode(self, folder: Path) -> Artifact:
        """A copy whose layers have sources only."""
        bare = {}
        for name, layer in (("dependencies", self.dependencies), ("runtime", self.runtime)):
            bare[name] = folder / name
            shutil.copytree(layer, bare[name], ignore=shutil.ignore_patterns("__pycache__"))
        return Artifact(self.python, self.code, bare["dependencies"], bare["runtime"], self.brought)


def make_artifact(folder: Path) -> Artifact:
    """The runtime layer is made anew, in `folder`."""
    return Artifact(
        lambda_python(), ROOT / "functions", dependencies_for(platform.machine()), runtime_layer(folder / "runtime"), _brought()
    )


def dependencies_for(processor: str) -> Path:
    """The dependency layer for `aarch64`, as it is shipped, or another."""
    platforms = f"PLATFORMS=manylinux_2_28_{processor} manylinux2014_{processor}"
    recipe = [DEPENDENCIES / "Makefile", DEPENDENCIES / "requirements.txt"]
    return _kept(f"dependencies-{processor}", recipe, lambda made: _make(DEPENDENCIES, "build-DependenciesLayer", made, platforms))


def runtime_layer(made: Path, *, source: Path = ROOT / "shared") -> Path:
    _make(source, "build-RuntimeLayer", made, f"--makefile={RUNTIME / 'Makefile'}")
    return made


def _brought() -> Path:
    def install(made: Path) -> None:
        pip = [lambda_python(), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--require-hashes"]
        _run([*pip, "--target", str(made), "--requirement", str(BROUGHT)], ROOT)

    return _kept("lambda", [BROUGHT], install)


def _kept(name: str, recipe: list[Path], make: Callable[[Path], None]) -> Path:
    """The folder that `make` filled for this recipe, the first time it was asked for."""
    digest = sha256(b"\0".join(file.read_bytes() for file in recipe)).hexdigest()[:16]
    kept = KEPT / f"{name}-{digest}"
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)  # Tests run in several processes.
        if not kept.is_dir():
            made = Path(mkdtemp(dir=KEPT))
            make(made)
            made.rename(kept)
    return kept


def _make(folder: Path, target: str, made: Path, *arguments: str) -> None:
    lambda_python()
    _run(["make", "--silent", *arguments, target, f"ARTIFACTS_DIR={made}"], folder)


def _run(command: list[str], folder: Path) -> None:
    # The variables of a make that this may be run by are not for the other.
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
