"""Lambda without Lambda: AWS's own runtime client in a process of its own, and the Runtime API it asks for events.

A process sees the function's folder, the layers and what Lambda's own Python brings, and nothing of this one's packages.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any

import psutil

TIMEOUT = 60.0
"""Seconds given to an invocation."""
_LAMBDA = {
    "AWS_EXECUTION_ENV": "AWS_Lambda_python3.13",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
    "AWS_LAMBDA_FUNCTION_NAME": "function",
    "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
    "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
    "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/function",
    "AWS_LAMBDA_LOG_STREAM_NAME": "stream",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "LANG": "en_US.UTF-8",
    "TZ": ":UTC",
}


class HandlerFailed(RuntimeError):
    """The handler, or its module while it was imported, raised; the text is what Lambda is told."""


@dataclass(frozen=True, slots=True)
class Function:
    """What an execution environment is made of.

    python: the interpreter. runtime: the folder with awslambdaric and what else Lambda brings. code: the function's folder. layers: the
    folders that are unpacked to /opt. handler: as the template names it.
    """

    python: str
    runtime: Path
    code: Path
    layers: Sequence[Path]
    handler: str
    variables: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()
    """Of the interpreter."""


class ExecutionEnvironment:
    """One process of the runtime client, which imports the handler at once and then waits for events. Close it."""

    def __init__(self, function: Function) -> None:
        self._events: Queue[tuple[str, bytes] | None] = Queue()
        self._answers: Queue[tuple[str, bytes]] = Queue()
        self._snapshot, self._restored = Event(), Event()
        self._server = _Server(("127.0.0.1", 0), _api(self._events, self._answers, self._snapshot, self._restored))
        Thread(target=self._server.serve_forever, daemon=True).start()
        layers = [str(layer / "python") for layer in function.layers]
        variables = {
            **_LAMBDA,
            **function.variables,
            "PATH": os.environ["PATH"],
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.server_port}",
            "LAMBDA_TASK_ROOT": str(function.code),
            "_HANDLER": function.handler,
            "PYTHONPATH": os.pathsep.join([str(function.code), *layers, str(function.runtime)]),
            # The folders are read-only in Lambda.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [function.python, "-S", *function.options, "-m", "awslambdaric", function.handler]
        self._process = subprocess.Popen(command, env=variables, cwd=function.code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._number, self._used = 0, 0.0
        self._output: list[bytes] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def invoke(self, event: Any) -> Any:
        """The handler's answer; `HandlerFailed` if it raised, or its module cannot be imported."""
        self._number += 1
        self._events.put((f"00000000-0000-4000-8000-{self._number:012}", json.dumps(event).encode()))
        until = time.monotonic() + TIMEOUT
        while True:
            try:
                kind, body = self._answers.get(timeout=0.1)
            except Empty:
                if not self._has_ended() and time.monotonic() < until:
                    continue
                raise HandlerFailed(f"the process ended, or took more than {TIMEOUT:g} s:\n{self.output()}") from None
            if kind != "response":
                raise HandlerFailed(f"{body.decode()}\n{self.output()}")
            return json.loads(body)

    def await_snapshot(self) -> None:
        """Until it is ready to be taken a snapshot of; with `AWS_LAMBDA_INITIALIZATION_TYPE` snap-start."""
        if not self._snapshot.wait(TIMEOUT):
            raise HandlerFailed(f"it was not ready for a snapshot within {TIMEOUT:g} s:\n{self.output()}")

    def restore(self) -> None:
        """Let it go on as if it were restored from that."""
        self._restored.set()

    def output(self) -> str:
        """What it has written so far."""
        return b"".join(self._output).decode(errors="replace")

    def cpu(self) -> float:
        """Seconds of CPU so far, to a hundredth."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def close(self) -> float:
        """End it at once; the seconds of CPU that it took, from its first instruction. Its output is complete then."""
        if self._process.returncode is not None:
            return self._used
        # Popen's own ways would reap it, and what it used be lost.
        os.kill(self._process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._events.put(None)
        self._restored.set()
        self._server.shutdown()
        self._server.server_close()
        self._reader.join(5)
        self._used = usage.ru_utime + usage.ru_stime
        return self._used

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            self._output += lines


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """The process was ended while it was answered."""


def _api(
    events: Queue[tuple[str, bytes] | None], answers: Queue[tuple[str, bytes]], snapshot: Event, restored: Event
) -> type[BaseHTTPRequestHandler]:
    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            """Of runtime/invocation/next, which is answered when there is an event, and runtime/restore/next, when it is restored."""
            if self.path.endswith("/restore/next"):
                snapshot.set()
                restored.wait()
                self._answer(200)
                return
            event = events.get()
            if event is None:
                self.close_connection = True
                return
            request, body = event
            self.send_response(200)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Lambda-Runtime-Aws-Request-Id": request,
                "Lambda-Runtime-Deadline-Ms": str(int((time.time() + TIMEOUT) * 1000)),
                "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:000000000000:function:function",
                "Lambda-Runtime-Trace-Id": "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=0",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            """Of runtime/invocation/ID/response or error, and runtime/init/error."""
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answers.put((self.path.rsplit("/", 1)[-1], body))
            self._answer(202)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Api
