"""A ministack with all that the stack is made of, in a Python of the functions' version: its functions run in its own."""

from __future__ import annotations

import http.client
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3

from runlane.adapters.local.guarded import GuardedProcess
from runlane.adapters.local.ports import LOOPBACK, free_port

ROOT = Path(__file__).parents[2]
MINISTACK = ROOT / ".venv-e2e/bin/ministack"
SAM = ROOT / ".venv-build/bin/sam"
REGION = "us-east-1"
START_TIMEOUT = 30.0
PLATFORMS = [f"{libc}_{platform.machine()}" for libc in ("manylinux_2_28", "manylinux2014")]
APP = "app.end_to_end:runlane"


class Cloud:
    """The account, empty at first; also a context manager."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="runlane-cloud-"))
        self.log = self.folder / "log"
        self._port = free_port()
        self._server: GuardedProcess | None = None

    @property
    def variables(self) -> dict[str, str]:
        """With which a process reaches it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{self._port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def client(self, service: str) -> Any:
        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self.variables["AWS_ENDPOINT_URL"],
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def __enter__(self) -> Cloud:
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "BIND_HOST": LOOPBACK,  # its default is every interface
            "MINISTACK_HOST": LOOPBACK,
            "GATEWAY_PORT": str(self._port),
            "MINISTACK_REGION": REGION,
            "AWS_ENDPOINT_URL": self.variables["AWS_ENDPOINT_URL"],
        }
        # Its functions inherit its environment, so it gets one of its own.
        command = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), str(MINISTACK)]
        self._server = GuardedProcess.start(command, log=self.log, remove=[self.folder])
        deadline = time.monotonic() + START_TIMEOUT
        while not _is_healthy(self._port):
            assert self._server.is_alive(), self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._server is not None:
            self._server.stop(signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)


class Project:
    """A copy of what is deployed, with the tests' application in it; built and deployed by the real `sam`.

    The functions run on this machine, so the layer's wheels are for its processor, not for Lambda's arm64.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self._variables = {**os.environ, **variables, "SAM_CLI_TELEMETRY": "0", "PLATFORMS": " ".join(PLATFORMS)}
        for name in ("functions", "layers", "shared"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for name in ("template.yaml", "samconfig.toml"):
            shutil.copy(ROOT / name, folder / name)
        self.write_release(1)
        # As a deployer does after a change of queues; from the copy, whose `app` it is.
        command = [sys.executable, "-m", "runlane.cli", "template", "--write", "template.yaml", "--fifo", "ordered=key", "--app", APP]
        self._run(command, {**self._variables, "PYTHONPATH": str(folder / "shared")})

    def write_release(self, number: int) -> None:
        text = (ROOT / "tests/e2e/application.py").read_text()
        assert "RELEASE = 1\n" in text
        (self.folder / "shared/app/end_to_end.py").write_text(text.replace("RELEASE = 1\n", f"RELEASE = {number}\n"))

    def sam(self, *arguments: str) -> str:
        return self._run([str(SAM), *arguments], self._variables)

    def _run(self, command: Sequence[str], variables: Mapping[str, str]) -> str:
        done = subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def _is_healthy(port: int) -> bool:
    # http.client goes through no proxy, whatever the environment says.
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=2)
    try:
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
