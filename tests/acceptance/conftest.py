from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.command import ROOT, Answer, command, inside, runlane, variables
from tests.waiting import until

Run = Callable[..., Answer]


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone as far as the command can tell, with a `.runlane` of its own."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "functions").symlink_to(ROOT / "functions")
    return folder


@pytest.fixture(scope="session")
def dev(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A development session with two tables of its own; ended as Ctrl-C ends it."""
    log = project / "dev.log"
    with log.open("wb") as output:
        session = subprocess.Popen(command("dev", "--tick-every", "2s"), cwd=project, env=variables(), stdout=output, stderr=output)
    until(lambda: session.poll() is not None or "Ctrl-C" in log.read_text(), timeout=60)
    assert session.poll() is None, log.read_text()
    yield session
    # Whatever the tests did in it.
    assert (found := runlane("verify", folder=project)).code == 0, found.out
    session.send_signal(signal.SIGINT)
    assert session.wait(60) == 0, log.read_text()
    assert not (project / ".runlane/env").exists()


@pytest.fixture(scope="session")
def shell(project: Path, dev: subprocess.Popen[bytes]) -> Run:
    """A command in the folder of a running development session, and nothing in its environment to find it by."""
    return partial(runlane, folder=project)


@pytest.fixture(scope="session")
def run(project: Path, dev: subprocess.Popen[bytes]) -> Run:
    """The same in this process."""
    return partial(inside, folder=project)
