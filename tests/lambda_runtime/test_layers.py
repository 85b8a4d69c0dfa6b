"""What the layers hold: bytecode for Lambda's Python, nothing that it has, and the same files wherever they are built."""

from __future__ import annotations

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from benchmarks.artifact import ROOT, SHIPPED, Artifact, dependencies_for, lambda_python, runtime_layer
from benchmarks.cold_start import zipped

UNCHECKED_HASH = 0b01
MOST = 15_000_000
"""Bytes of both layers, zipped."""


@pytest.fixture(scope="module")
def shipped(artifact: Artifact) -> Path:
    return dependencies_for(SHIPPED)


def digests(layer: Path) -> dict[str, str]:
    return {str(path.relative_to(layer)): sha256(path.read_bytes()).hexdigest() for path in layer.rglob("*") if path.is_file()}


def test_both_layers_are_small(shipped: Path, artifact: Artifact) -> None:
    assert zipped(shipped) + zipped(artifact.runtime) <= MOST


def test_the_dependencies_are_for_lambdas_processor(shipped: Path) -> None:
    binaries = [path.name for path in shipped.rglob("*.cpython-*.so")]
    assert binaries
    assert all("313-aarch64-linux-gnu" in name for name in binaries)


@pytest.mark.parametrize("package", ["boto3", "botocore", "s3transfer", "urllib3", "aws_xray_sdk", "awslambdaric", "pip", "bin"])
def test_no_layer_holds_what_lambda_brings(package: str, shipped: Path, artifact: Artifact) -> None:
    assert not [layer for layer in (shipped, artifact.runtime) if (layer / "python" / package).exists()]


@pytest.mark.parametrize("layer", ["dependencies", "runtime"])
def test_every_module_has_bytecode_that_lambda_takes_as_it_is(layer: str, shipped: Path, artifact: Artifact) -> None:
    """Zipping rounds the times that a checked one would be compared by, and a folder that is read-only keeps no other."""
    folder = shipped if layer == "dependencies" else artifact.runtime
    sources = [path for path in folder.rglob("*.py") if path.is_file()]
    assert len(sources) > 100
    magic = _magic()
    for source in sources:
        compiled = source.parent / "__pycache__" / f"{source.stem}.cpython-313.pyc"
        assert compiled.is_file(), source
        header = compiled.read_bytes()[:8]
        assert (header[:4], int.from_bytes(header[4:], "little")) == (magic, UNCHECKED_HASH), source


def test_the_runtime_layer_comes_out_the_same_wherever_it_is_built(artifact: Artifact, tmp_path: Path) -> None:
    """So that a deploy makes a new version of it, and with that runs the migrations, exactly when shared/ changes."""
    source = tmp_path / "elsewhere" / "shared"
    shutil.copytree(ROOT / "shared", source, ignore=shutil.ignore_patterns("*.egg-info"))
    for path in source.rglob("*.py"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    stale = source / "runlane" / "__pycache__"
    stale.mkdir(exist_ok=True)
    (stale / "left_behind.cpython-313.pyc").write_bytes(b"")
    first = digests(artifact.runtime)
    assert digests(runtime_layer(tmp_path / "one", source=source)) == first
    changed = source / "app" / "tasks.py"
    changed.write_text(f"{changed.read_text(encoding='utf-8')}\n# changed\n", encoding="utf-8")
    assert {name for name, digest in digests(runtime_layer(tmp_path / "two", source=source)).items() if first.get(name) != digest} == {
        "python/app/tasks.py",
        "python/app/__pycache__/tasks.cpython-313.pyc",
    }


def test_a_recipe_reads_nothing_beside_its_folder() -> None:
    """SAM keeps what it built until that folder changes."""
    for recipe in (ROOT / "layers").glob("*/Makefile"):
        assert ".." not in recipe.read_text(encoding="utf-8"), recipe


def _magic() -> bytes:
    program = "import importlib.util, sys; sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER)"
    return subprocess.run([lambda_python(), "-c", program], capture_output=True, check=True).stdout
