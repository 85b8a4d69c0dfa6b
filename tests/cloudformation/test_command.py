"""`runlane template`, as it is typed: without a database, a queue or an account."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHIPPED = Path(__file__).parents[2] / "template.yaml"
APP = """
from functools import cache
from runlane import Queue
from runlane.bootstrap import environment_runlane

@cache
def runlane():
    return environment_runlane(queues=[Queue("main", default=True), {more}])
"""


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.template = path / "template.yaml"
        self.template.write_text(SHIPPED.read_text())
        self.queues()

    def queues(self, more: str = "") -> None:
        (self.path / "mine.py").write_text(APP.format(more=more))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("RUNLANE_", "DATABASE_", "AWS_"))}
        return subprocess.run(
            [sys.executable, "-m", "runlane.cli", "template", "--app", "mine:runlane", *words],
            cwd=self.path, env=variables, capture_output=True, text=True, timeout=60,
        )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_one_line_of_python_and_one_command_add_a_queue(folder: Folder) -> None:
    assert folder.run("--write", "template.yaml").returncode == 0
    folder.queues('Queue("later")')
    stale = folder.run("--check", "template.yaml")
    assert (stale.returncode, "is not what the catalog needs" in stale.stdout) == (1, True)
    assert "LaterQueue" not in folder.template.read_text()
    assert "renewed" in folder.run("--write", "template.yaml").stdout
    assert json.loads(folder.run("--check", "template.yaml", "--json").stdout) == {"queues": ["main", "later"], "is_current": True}
    text = folder.template.read_text()
    assert all(name in text for name in ("LaterQueue:", "LaterDeadLetters:", "LaterMapping:", "LaterDeadLettersAlarm:", "LaterQueueUrl:"))
    assert "InvoiceSync" not in text, "what is no longer in the catalog is gone"


def test_an_order_stays_until_it_is_taken_back(folder: Folder) -> None:
    folder.queues('Queue("later")')
    folder.run("--write", "template.yaml", "--fifo", "later=queue")
    assert folder.run("--check", "template.yaml").returncode == 0
    assert "--fifo later=queue" in folder.template.read_text()
    folder.run("--write", "template.yaml", "--no-fifo")
    assert "--fifo" not in folder.template.read_text()


def test_what_is_printed_is_yaml_as_it_is(folder: Folder) -> None:
    printed = folder.run().stdout
    assert max(len(line) for line in printed.splitlines()) > 200, "no line is broken"
    assert json.loads(folder.run("--json").stdout)["blocks"]["resources"] in printed


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--fifo", "nowhere"), 2, "--fifo nowhere: is no queue here; the application has main"),
        (("--write", "none.yaml"), 2, "does not exist"),
        (("--write", "mine.py"), 1, "# runlane template: variables"),
        (("--write", "template.yaml", "--check", "template.yaml"), 2, "give only one"),
    ],
)
def test_what_cannot_be_done_says_why_and_changes_nothing(folder: Folder, words: tuple[str, ...], code: int, said: str) -> None:
    before = folder.template.read_text()
    done = folder.run(*words)
    assert (done.returncode, said in done.stderr) == (code, True)
    assert folder.template.read_text() == before
