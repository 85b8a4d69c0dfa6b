"""The commands a stranger types."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
PHONY = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[0].split()


@pytest.fixture(scope="module")
def help_text() -> str:
    return subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("target", PHONY)
def test_every_target_is_explained_by_plain_make(target: str, help_text: str) -> None:
    assert re.search(rf"^make {target}\s+\S", help_text, re.MULTILINE)


@pytest.mark.parametrize("target", ["help", "demo", "dev", "test", "test-chaos", "chaos", "soak", "e2e", "lint", "bench", "build"])
def test_a_command_is_one_line_that_calls_a_tool(target: str) -> None:
    assert target in PHONY
    recipe = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert len(recipe[0].splitlines()) == 1


def test_the_submission_check_runs_the_same_commands() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line.startswith("make ")]
    assert commands == [
        "make lint",
        "make build",
        "make gate",
        "make e2e",
        "make test-thorough",
        "make test-chaos",
        "make soak MINUTES=1",
        "make test",
    ]
