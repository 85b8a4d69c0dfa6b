"""An SQS of our own that fails on demand: each request is answered by the next behaviour, the last one for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Request = dict[str, Any]
Answer = tuple[int, Any]
"""HTTP status and JSON body; status 0 drops the connection, a `bytes` body is sent as it is."""
Behaviour = Callable[[Request], Answer]


def succeed(request: Request) -> Answer:
    return split(request, {})


def split(request: Request, failed: dict[int, dict[str, Any]]) -> Answer:
    entries = request.get("Entries", [])
    sent = [{"Id": entry["Id"], "MessageId": f"m{entry['Id']}"} for i, entry in enumerate(entries) if i not in failed]
    return 200, {"Successful": sent, "Failed": [{"Id": entries[i]["Id"], **fault} for i, fault in failed.items()]}


def fail_entries(**fault: Any) -> Behaviour:
    """Fail the entries at even places."""
    return lambda request: split(request, dict.fromkeys(range(0, len(request["Entries"]), 2), fault))


def refuse(status: int, code: str, message: str = "no") -> Behaviour:
    return lambda request: (status, {"__type": f"com.amazonaws.sqs#{code}", "message": message})


def answer(status: int, body: Any) -> Behaviour:
    return lambda request: (status, body)


def drop(request: Request) -> Answer:
    return 0, None


class Sqs:
    """`requests` are in order of arrival, each with its `operation`; `release` ends every `hang`."""

    def __init__(self, behaviours: Sequence[Behaviour]) -> None:
        self.behaviours = list(behaviours)
        self.requests: list[Request] = []
        self.release = threading.Event()
        self.url = ""
        self._lock = threading.Lock()

    def hang(self, request: Request) -> Answer:
        self.release.wait(60)
        return 0, None

    def answer(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            behaviour = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        return behaviour(request)


@contextmanager
def misbehaving(*behaviours: Behaviour) -> Iterator[Sqs]:
    sqs = Sqs(behaviours or [succeed])
    server = _Server(("127.0.0.1", 0), _handler(sqs))
    sqs.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield sqs
    finally:
        sqs.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        return None


def _handler(sqs: Sqs) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # One segment per answer, else delayed acknowledgements cost 40 ms.

        def log_message(self, format: str, *args: Any) -> None:
            return None

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            operation = self.headers["X-Amz-Target"].rpartition(".")[2]
            status, content = sqs.answer({**json.loads(body), "operation": operation})
            if not status:
                self.close_connection = True
                return
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("x-amzn-RequestId", "request-1")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
