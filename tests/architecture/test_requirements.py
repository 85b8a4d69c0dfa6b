"""The pinned requirement files are what pyproject.toml asks for: no package missing, none too many, one version of each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LAYER = ROOT / "layers/dependencies/requirements.txt"
LOCAL = ROOT / "requirements.txt"
DEV = ROOT / "requirements-dev.txt"
BUILD = ROOT / "requirements-build.txt"
LAMBDA = ROOT / "requirements-lambda.txt"
E2E = ROOT / "requirements-e2e.txt"
IN_LAMBDA = {"python_version": "3.13", "python_full_version": "3.13.0", "sys_platform": "linux", "platform_machine": "aarch64"}

PROJECT = PYPROJECT["project"]["dependencies"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]
OWN = f"{PYPROJECT['project']['name']}["
TESTING = EXTRAS.pop("testing")
EVERYWHERE = [*PROJECT, *(line for extra in EXTRAS.values() for line in extra if not line.startswith(OWN)), *GROUPS["install"]]


def pins(path: Path) -> dict[str, str]:
    """Version by name of the lines that count on this platform."""
    requirements = (Requirement(line) for line in re.findall(r"^([a-z][^#\\\n]+==[^\\\n]+?) *\\$", path.read_text(), re.MULTILINE))
    return {canonicalize_name(r.name): str(r.specifier)[2:] for r in requirements if r.marker is None or r.marker.evaluate()}


def asked(lines: Iterable[str]) -> list[Requirement]:
    return [Requirement(line) for line in lines]


def closure(wanted: list[Requirement], **environment: str) -> set[str]:
    """Names that the installed packages' own metadata lead to, from `wanted`, here or where `environment` says otherwise."""
    here = {name: str(value) for name, value in default_environment().items()} | environment
    names: set[str] = set()
    seen: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        names.add(canonicalize_name(requirement.name))
        for extra in [*requirement.extras, ""]:
            of_it = (Requirement(line) for line in requires(requirement.name) or ())
            wanted += [r for r in of_it if r.marker is None or r.marker.evaluate({**here, "extra": extra})]
    return names


def test_the_layer_holds_the_projects_dependencies_and_nothing_else() -> None:
    assert set(pins(LAYER)) == closure(asked(PROJECT), **IN_LAMBDA)


def test_the_local_requirements_hold_the_product_and_its_local_lane_and_nothing_else() -> None:
    assert set(pins(LOCAL)) == closure(asked(EVERYWHERE))


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        (LAYER, PROJECT),
        (LOCAL, EVERYWHERE),
        (DEV, [*EVERYWHERE, *TESTING, *GROUPS["dev"]]),
        (BUILD, GROUPS["build"]),
        (LAMBDA, GROUPS["lambda"]),
        (E2E, GROUPS["e2e"]),
    ],
    ids=["layer", "local", "dev", "build", "lambda", "e2e"],
)
def test_every_pin_is_within_the_range_asked_for(path: Path, lines: list[str]) -> None:
    pinned = pins(path)
    wrong = [str(r) for r in asked(lines) if not r.specifier.contains(pinned.get(canonicalize_name(r.name), "0"))]
    assert not wrong


@pytest.mark.parametrize("path", [LAYER, LOCAL], ids=["layer", "local"])
def test_what_is_tested_is_what_ships(path: Path) -> None:
    tested = pins(DEV)
    assert {name: version for name, version in pins(path).items() if tested.get(name) != version} == {}


@pytest.mark.parametrize("path", [LAYER, LOCAL, DEV, BUILD, LAMBDA, E2E], ids=["layer", "local", "dev", "build", "lambda", "e2e"])
def test_every_pin_carries_its_hashes(path: Path) -> None:
    entries = re.split(r"\n(?=[a-z])", path.read_text())[1:]
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)


def test_the_functions_do_not_carry_what_lambda_brings() -> None:
    assert not {"boto3", "botocore"} & set(pins(LAYER))
