"""Two imitations of SQS: moto in this process, and ministack from PATH, from beside this Python, or as RUNLANE_MINISTACK names it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
READY_WITHIN = 60.0


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    for variable, value in ACCOUNT.items():
        monkeypatch.setenv(variable, value)


@pytest.fixture
def moto() -> Iterator[None]:
    with mock_aws():
        yield None


@pytest.fixture(params=["moto", "ministack"])
def endpoint(request: pytest.FixtureRequest) -> str | None:
    found: str | None = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def sqs(endpoint: str | None) -> Iterator[Any]:
    client: Any = boto3.client("sqs", endpoint_url=endpoint)
    yield client
    client.close()


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a ministack of this session's own, on loopback."""
    command = (
        os.environ.get("RUNLANE_MINISTACK") or shutil.which("ministack") or shutil.which("ministack", path=Path(sys.executable).parent)
    )
    if command is None:
        pytest.skip("no ministack: install it, or name it in RUNLANE_MINISTACK")
    port = _free_port()
    home = tmp_path_factory.mktemp("ministack")
    environment = {**os.environ, **ACCOUNT, "BIND_HOST": "127.0.0.1", "MINISTACK_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    with (home / "log").open("w") as log:
        process = subprocess.Popen([command], env=environment, cwd=home, stdout=log, stderr=subprocess.STDOUT)
        try:
            _await_ready(f"http://127.0.0.1:{port}", process, home / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _await_ready(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{endpoint}/_ministack/health", timeout=1).close()
            return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    pytest.fail(f"ministack did not start:\n{log.read_text()[-2000:]}")
