"""An SQS of one's own: ministack on loopback, on a free port, gone when the process that started it is gone."""

from __future__ import annotations

import atexit
import http.client
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import boto3
import psutil
from botocore.config import Config

from runlane.adapters.local.faults import LocalLaneError, with_log_tail
from runlane.adapters.local.guarded import GuardedProcess
from runlane.adapters.local.ports import LOOPBACK, free_port

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeNameType

REGION = "us-east-1"
# ministack asks for some credentials and takes any; given explicitly, so that real ones are never sent.
ACCESS_KEY = SECRET_KEY = "local"
START_TIMEOUT = 20.0
PORT_ATTEMPTS = 3
FIFO_SUFFIX = ".fifo"


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """A queue with its dead-letter queue; URLs as the client takes them."""

    name: str
    url: str
    arn: str
    dead_letter_url: str
    visibility_timeout: timedelta


def local_sqs_client(endpoint_url: str) -> SQSClient:
    """A thread-safe client with dummy credentials that gives up a connection after 1 s and a long poll after 25 s."""
    config = Config(connect_timeout=1, read_timeout=25, retries={"total_max_attempts": 2, "mode": "standard"}, max_pool_connections=64)
    return boto3.client(
        "sqs",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=config,
    )


class LocalSqs:
    """A ministack that serves SQS only and forgets everything when it stops; also a context manager.

    port: default a free one.
    """

    def __init__(self, *, port: int | None = None) -> None:
        self.port = port
        self._server: GuardedProcess | None = None
        self._folder: Path | None = None
        self._client: SQSClient | None = None

    @property
    def endpoint_url(self) -> str:
        if self._server is None:
            raise LocalLaneError("The local SQS was not started: call start() first.")
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def client(self) -> SQSClient:
        if self._client is None:
            self._client = local_sqs_client(self.endpoint_url)
        return self._client

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which a process of its own reaches this SQS."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def start(self) -> LocalSqs:
        """Start the server and wait until it answers, at most 20 s; nothing happens when it runs.

        Raises LocalLaneError with the end of the server's log.
        """
        if self._server is not None and self._server.is_alive():
            return self
        atexit.register(self.stop)
        folder = self._folder = self._folder or Path(tempfile.mkdtemp(prefix="runlane-sqs-"))
        attempts = 1 if self.port else PORT_ATTEMPTS
        for _ in range(attempts):
            if self._starts(folder, self.port or free_port()):
                return self
        error = with_log_tail(f"ministack did not start within {START_TIMEOUT:.0f} s.", folder / "log")
        self.stop()
        raise error

    def stop(self) -> None:
        """Stop the server; its queues are lost. Safe to call twice."""
        atexit.unregister(self.stop)
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._server is not None:
            # All it has is in memory, so there is nothing to end in order, which would take a second.
            self._server.stop(signal.SIGKILL)
            self._server = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def create_queue(self, name: str, *, visibility_timeout: timedelta = timedelta(seconds=30), max_receive_count: int = 5) -> LocalQueue:
        """Create `name` and its dead-letter queue `name-dlq`; again with the same values, the same queue.

        A name that ends in `.fifo` makes both FIFO. A message received `max_receive_count` times goes to the dead-letter queue next.
        """
        stem, fifo = name.removesuffix(FIFO_SUFFIX), name.endswith(FIFO_SUFFIX)
        dead_letter_url = self._create(f"{stem}-dlq{FIFO_SUFFIX if fifo else ''}", {}, fifo=fifo)
        redrive = {"deadLetterTargetArn": self._arn(dead_letter_url), "maxReceiveCount": max_receive_count}
        seconds = str(int(visibility_timeout.total_seconds()))
        url = self._create(name, {"VisibilityTimeout": seconds, "RedrivePolicy": json.dumps(redrive)}, fifo=fifo)
        return LocalQueue(name, url, self._arn(url), dead_letter_url, visibility_timeout)

    def __enter__(self) -> LocalSqs:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def _starts(self, folder: Path, port: int) -> bool:
        variables = {
            "BIND_HOST": LOOPBACK,  # its default is every interface
            "MINISTACK_HOST": LOOPBACK,
            "GATEWAY_PORT": str(port),
            "SERVICES": "sqs",
            "LOG_LEVEL": "ERROR",
            "MINISTACK_REGION": REGION,
        }
        server = GuardedProcess.start([find_ministack()], log=folder / "log", variables=variables, remove=[folder])
        if _answers(server, port):
            self._server, self.port = server, port
            return True
        server.stop()
        return False

    def _create(self, name: str, attributes: dict[QueueAttributeNameType, str], *, fifo: bool) -> str:
        if fifo:
            attributes = {**attributes, "FifoQueue": "true"}
        return self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def _arn(self, url: str) -> str:
        return self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


def find_ministack() -> str:
    """The console script beside this Python, else on the PATH; raises LocalLaneError when it is not installed."""
    beside = Path(sys.executable).with_name("ministack")
    found = str(beside) if beside.exists() else shutil.which("ministack")
    if found is None:
        raise LocalLaneError("ministack was not found: install the 'local' extra, or set AWS_ENDPOINT_URL to an SQS of your own.")
    return found


def _answers(server: GuardedProcess, port: int) -> bool:
    deadline = time.monotonic() + START_TIMEOUT
    while server.is_alive() and time.monotonic() < deadline:
        # A stranger on the port answers too, so ours must be the one that listens.
        if _is_healthy(port) and _listens(server.pid, port):
            return True
        time.sleep(0.03)
    return False


def _listens(pid: int, port: int) -> bool:
    try:
        connections = psutil.Process(pid).net_connections("inet")
    except psutil.NoSuchProcess:
        return False
    return any(connection.status == psutil.CONN_LISTEN and connection.laddr.port == port for connection in connections)


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
